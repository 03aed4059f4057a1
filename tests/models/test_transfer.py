"""Packed copies, copies of results and recordings, on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from batchgen.models.transfer import HostCopies, Recorder, to_device

CPU = torch.device("cpu")


def test_arrays_are_copied_unchanged_into_one_tensor() -> None:
    arrays = [np.array([3, -1, 2]), np.array([[0.5, 1.5]]), np.empty((2, 0), np.int64), np.arange(4).reshape(2, 2).T]
    tensors = to_device(arrays, CPU)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.tolist() == array.tolist()
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_every_array_begins_on_16_bytes() -> None:
    first, second = to_device([np.arange(3), np.arange(2)], CPU)
    assert (second.data_ptr() - first.data_ptr()) % 16 == 0


def test_a_copy_is_not_affected_when_its_source_is_overwritten() -> None:
    tensor = torch.zeros(2)
    copies = HostCopies.begin(CPU)
    copy = copies.of(tensor)
    tensor.fill_(1)
    copies.wait()
    assert copy.tolist() == [0, 0]


def test_a_replay_uses_the_same_tensors() -> None:
    source, target = torch.zeros(1), torch.zeros(1)
    replay = Recorder(CPU).record(lambda: target.copy_(source))
    source.fill_(5)
    replay()
    assert target.item() == 5
