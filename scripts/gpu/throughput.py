"""Throughput of the engine on a device, how long the device is idle, and the throughput of transformers.

A workload that does not end in its time is cut off, and its figure `complete` is False. The share of the roofline is
the least time of the steps that ran (`scripts/roofline.py`), divided by the wall time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile
from transformers import ContinuousBatchingConfig, GenerationConfig

from batchgen.engine.request import Request
from batchgen.models.attention import IMPLEMENTATION
from batchgen_kernels.triton import TritonBackend
from scripts.gpu.engine_runs import SHARE_ALL, SHARE_NONE, make_engine, make_model, run_engine
from scripts.gpu.machine import Machine
from scripts.gpu.workloads import Workload, w1, w3
from scripts.roofline import ModelSize, least_seconds


def time_w1(machine: Machine, seconds: float) -> dict[str, Any]:
    """Time W1 as a run would run it."""
    return _throughput(machine, w1(machine.scale), None, seconds)


def time_w3_shared(machine: Machine, seconds: float) -> dict[str, Any]:
    """Time W3 with attention over shared prefixes."""
    return _throughput(machine, w3(machine.scale), SHARE_ALL, seconds)


def time_w3_plain(machine: Machine, seconds: float) -> dict[str, Any]:
    """Time W3 with attention that reads shared prefixes for each row."""
    return _throughput(machine, w3(machine.scale), SHARE_NONE, seconds)


def _throughput(machine: Machine, work: Workload, min_saved_bytes: float | None, seconds: float) -> dict[str, Any]:
    model = make_model(machine, IMPLEMENTATION)
    run_engine(machine, model, work.warm_up(), min_saved_bytes)
    run = run_engine(machine, model, work, min_saved_bytes, time.perf_counter() + 0.8 * seconds)
    size = ModelSize.of(model.config, machine.dtype.itemsize)
    least = sum(least_seconds(step, size, machine.limits) for step in run.steps)
    return {**run.figures(work), "share of the roofline": least / run.seconds}


def time_idle(machine: Machine, _: float) -> dict[str, Any]:
    """Compare the kernel time of profiled steps with the wall time of as many steps before them, without a profiler."""
    before, count = machine.scale.idle_steps
    engine, requests = make_engine(machine, make_model(machine, IMPLEMENTATION), w1(machine.scale), TritonBackend())
    steps = engine.run(requests)
    _take(steps, before)
    begin = time.perf_counter()
    _take(steps, count)
    wall = time.perf_counter() - begin
    if machine.device.type == "cpu":
        return {"wall ms a step": wall / count * 1e3, "idle share": "not measured on a CPU"}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        _take(steps, count)
    kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
    busy = sum(event.time_range.elapsed_us() for event in kernels) / 1e6
    assert busy, "the profiler saw no kernel"
    return {
        "wall ms a step": wall / count * 1e3,
        "busy ms a step": busy / count * 1e3,
        "idle share": 1 - busy / wall,
    }


def _take(steps: Iterator[list[Request]], count: int) -> None:
    """Run `count` steps. Each ends with the tokens of the one before on the host: the device is at most one ahead."""
    for _ in range(count):
        assert next(steps, None) is not None, "the work ended before it could be measured"


def time_transformers(machine: Machine, seconds: float) -> dict[str, Any]:
    """Time transformers' continuous batching on W1; only completions that ended count."""
    work, model = w1(machine.scale), make_model(machine, "sdpa")
    assert hasattr(model, "init_continuous_batching"), "this transformers has no init_continuous_batching"
    most = max(work.max_tokens)
    config = GenerationConfig(do_sample=True, temperature=0.6, max_new_tokens=most, eos_token_id=-1)  # type: ignore[no-untyped-call]
    sizes = ContinuousBatchingConfig(**machine.scale.peer)  # type: ignore[arg-type]
    manager = model.init_continuous_batching(config, sizes)  # type: ignore[operator]
    manager.start()
    try:
        _drain(manager, work.warm_up(), 0.4 * seconds)
        num_tokens, num_ended, wall = _drain(manager, work, 0.5 * seconds)
    finally:
        manager.stop(block=True, timeout=5)
    assert num_ended, f"no completion ended in {wall:.0f} s (manager running: {manager.is_running()})"
    return {"output tokens/s": num_tokens / wall, "seconds": wall, "complete": num_ended == len(work.prompts)}


def _drain(manager: Any, work: Workload, seconds: float) -> tuple[int, int, float]:
    """Run the work for at most so long; return output tokens and completions that ended, and the seconds taken."""
    begin = time.perf_counter()
    for prompt, count in zip(work.prompts, work.max_tokens, strict=True):
        manager.add_request(prompt, max_new_tokens=count)
    num_tokens = num_ended = 0
    while num_ended < len(work.prompts) and time.perf_counter() - begin < seconds and manager.is_running():
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            assert result.error is None, result.error
            num_tokens, num_ended = num_tokens + len(result.generated_tokens), num_ended + 1
    return num_tokens, num_ended, time.perf_counter() - begin
