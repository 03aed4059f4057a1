from __future__ import annotations

import numba
import pytest
import torch

from batchgen.models.backends import warm_up
from batchgen.models.probe import AttentionLayer
from batchgen_kernels import CpuBackend
from batchgen_kernels.cpu import attention


def layer(head_size: int) -> AttentionLayer:
    return AttentionLayer("attention", 4, 2, head_size, head_size, None)


def test_the_kernels_are_compiled_when_the_block_ends() -> None:
    backend, num_threads = CpuBackend(), numba.get_num_threads()
    with warm_up(backend, layer(64), torch.float16):
        pass
    assert any("int16" in str(signature) for signature in attention.attend_tasks.signatures)
    assert numba.get_num_threads() == num_threads


@pytest.mark.parametrize("head_size", [8, 64])  # the reference's, the kernels'
def test_no_page_is_left_behind(head_size: int) -> None:
    backend = CpuBackend()
    with warm_up(backend, layer(head_size), torch.float32):
        pass
    assert not backend._pools


@pytest.mark.parametrize("head_size", [8, 64])
def test_torchs_default_type_may_be_any(head_size: int) -> None:
    """transformers changes it for the whole process while it loads a model."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with warm_up(CpuBackend(), layer(head_size), torch.bfloat16):
            pass
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_failure_inside_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="weights"), warm_up(CpuBackend(), layer(64), torch.float32):
        raise ValueError("weights")
