"""Work that a GPU does asynchronously and a CPU at once: copies to and from the device, and recorded forwards.

The only module of the loop with pinned memory, streams, events and CUDA graphs; all others are the same on both. Knows
tensors; knows neither models nor requests. Has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def to_device(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """Return arrays of 8-byte numbers as views of one tensor on the device: one copy, asynchronous on a GPU.

    Every call allocates a host buffer: torch reuses pinned memory when its copy is done. Every array begins on 16
    bytes, since Triton compiles a kernel again for pointers with another alignment.
    """
    ends = np.cumsum([array.size + array.size % 2 for array in arrays]).tolist()
    host = torch.zeros(ends[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    packed = host.numpy()
    starts = [0, *ends[:-1]]
    for start, array in zip(starts, arrays, strict=True):
        packed[start : start + array.size] = array.reshape(-1).view(np.int64)
    on_device = host.to(device, non_blocking=True)
    return [
        on_device[start : start + array.size].view(_DTYPES[array.dtype]).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.float64): torch.float64}


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies of results to the host. On a GPU they run beside the computation that is launched after them."""

    stream: Any  # the torch.cuda.Stream of the copies; None on a CPU
    event: Any

    @classmethod
    def begin(cls, device: torch.device) -> HostCopies:
        """Begin copies of results whose computation has been launched."""
        if device.type == "cpu":
            return cls(None, None)
        stream = _copy_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        return cls(stream, torch.cuda.Event())  # type: ignore[no-untyped-call]

    def of(self, tensor: Tensor) -> Tensor:
        """Return a copy on the host, to be read after `wait`."""
        if self.stream is None:
            return tensor.clone()
        with torch.cuda.stream(self.stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        self.event.record(self.stream)
        return host

    def wait(self) -> None:
        """Wait until all copies are done, but for nothing else that was launched after `begin`."""
        if self.event is not None:
            self.event.synchronize()


@cache
def _copy_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Recorder:
    """Records forwards that have run once. All recordings share one memory pool, so none may be replayed while the
    results of another are still needed."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def record(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a function that repeats `call` over the same tensors: its CUDA graph, or on a CPU `call` itself.

        Raises RuntimeError if it cannot be captured, for example because it synchronises with the device.
        """
        if self._pool is None:
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            call()
        return graph.replay
