"""The device that gpu_check.py runs on: its clock and its limits. Knows no kernel and no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from scripts.gpu.scale import REAL, TINY, Scale
from scripts.roofline import Limits

_UNKNOWN = Limits(math.nan, math.nan)  # until `measure_limits`; shares of these limits are NaN, too


@dataclass(slots=True)
class Machine:
    """A device, the dtype that it is measured in, and the sizes of what runs on it."""

    device: torch.device
    dtype: torch.dtype
    scale: Scale
    limits: Limits = _UNKNOWN

    @classmethod
    def real(cls) -> Machine:
        """The first GPU of this machine, with float32 products in full precision."""
        torch.set_float32_matmul_precision("highest")
        return cls(torch.device("cuda", 0), torch.bfloat16, REAL)

    @classmethod
    def dry(cls) -> Machine:
        """The CPU of this machine, with tiny sizes."""
        return cls(torch.device("cpu"), torch.float32, TINY)

    def time(self, work: Callable[[], object]) -> float:
        """Return the seconds of one call on the device: the mean of many in a row, after two that warm up."""
        work(), work()
        if self.device.type == "cpu":
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(self.scale.repeats):
            work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / self.scale.repeats

    def time_graph(self, work: Callable[[], object]) -> float:
        """Return the seconds of one replay of a CUDA graph, which leaves out the time of the host."""
        if self.device.type == "cpu":
            return self.time(work)
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return self.time(graph.replay)


def measure_limits(machine: Machine, _: float) -> dict[str, Any]:
    """Time a large copy and a large square product, and keep the rates for the roofline."""
    size, side = machine.scale.copy_bytes, machine.scale.matrix
    source = torch.ones(size, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    left, right = (torch.randn((side, side), dtype=machine.dtype, device=machine.device) for _ in range(2))
    bandwidth = 2 * size / machine.time(lambda: target.copy_(source))
    flops = 2 * side**3 / machine.time(lambda: left @ right)
    machine.limits = Limits(flops, bandwidth)
    return {"copy GB/s": bandwidth / 1e9, "products TFLOP/s": flops / 1e12}
