"""What a step costs on the host: the time of the engine without the model, for steps that decode N rows.

    python -m scripts.bench.host                    128 and 512 rows
    python -m scripts.bench.host 256 --profile      also where the time goes, by function

Scheduler, block pool, prefix cache, counters, batch and the CPU attention's task lists are the real ones; a stand-in
for the model gives every row the same token. Groups of sixteen rows share 32 blocks. The figures are CPU time of one
thread, the median of the steps. Last line: JSON.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Sequence

import click
import numpy as np
import torch

from batchgen.engine.batch import BlockTables, make_batch
from batchgen.engine.build import EngineSettings
from batchgen.engine.engine import CompletedStep
from batchgen.engine.request import Request
from batchgen.engine.step import SchedulerOutput
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import CpuBackend
from scripts.bench.stand_in import StandIn, make_engine

_BLOCK_SIZE = 16
_GROUP_ROWS = 16
_SHARED_TOKENS = 32 * _BLOCK_SIZE
_OWN_TOKENS = 90
_OUTPUT_TOKENS = 64
_HEADS_PER_KV_HEAD = 3
_CPU = torch.device("cpu")


class InputTimer(StandIn):
    """A stand-in that first makes the inputs of a real model, and times that."""

    def __init__(self) -> None:
        self._backend = CpuBackend()
        self._tables = BlockTables()
        self.seconds = 0.0
        self.is_decode = False

    def start(self, step: SchedulerOutput) -> CompletedStep:
        begin = time.thread_time()
        batch = make_batch(step, self._tables, _BLOCK_SIZE, _CPU)
        self._backend.prepare(batch.attention).tasks_for(_HEADS_PER_KV_HEAD)
        self.seconds = time.thread_time() - begin
        self.is_decode = not any(chunk.is_prefill for chunk in step.chunks)
        return super().start(step)


def make_requests(num_rows: int) -> list[Request]:
    """Return requests in the order that a plan would give them."""
    shared = [np.full(_SHARED_TOKENS, group, np.int32) for group in range(-(-num_rows // _GROUP_ROWS))]
    params = SamplingParams(temperature=0.8)
    return [
        Request(
            row,
            np.concatenate([shared[row // _GROUP_ROWS], np.arange(_OWN_TOKENS, dtype=np.int32) + 1000 + row]),
            params,
            rng_key=row,
            max_tokens=_OUTPUT_TOKENS,
            shared_with_next=_SHARED_TOKENS if (row + 1) % _GROUP_ROWS else 0,
        )
        for row in range(num_rows)
    ]


def time_steps(num_rows: int) -> dict[str, float]:
    """Return the milliseconds of a step that decodes so many rows: all of it, the model's inputs, and the rest."""
    settings = EngineSettings(
        num_blocks=num_rows * 64,
        block_size=_BLOCK_SIZE,
        max_num_seqs=num_rows,
        max_batched_tokens=num_rows * (_SHARED_TOKENS + _OWN_TOKENS),  # one step of prefill, and then all decode
        expected_tokens=_OUTPUT_TOKENS,
        prefix_cache=True,
        max_model_len=2048,
        by_prefix=True,
    )
    runner = InputTimer()
    engine = make_engine(settings, runner)
    for request in make_requests(num_rows):
        engine.scheduler.add(request)
    steps: list[tuple[float, float]] = []
    while engine.scheduler.running or engine.scheduler.waiting:
        begin = time.thread_time()
        engine.step()
        if runner.is_decode:
            steps.append((time.thread_time() - begin, runner.seconds))
    whole, inputs = (statistics.median(seconds) * 1e3 for seconds in zip(*steps, strict=True))
    return {"step": whole, "inputs": inputs, "rest": whole - inputs}


@click.command(help=__doc__)
@click.argument("num_rows", type=int, nargs=-1)
@click.option("--profile", is_flag=True, help="Also print the functions that take most of the time.")
def main(num_rows: Sequence[int], profile: bool) -> None:
    result = {}
    print("  rows  ms a step   inputs: batch, tasks, sampling   rest: schedule, update, counters")
    for rows in num_rows or (128, 512):
        result[str(rows)] = found = time_steps(rows)
        print(f"{rows:6}  {found['step']:9.2f}   {found['inputs']:30.2f}   {found['rest']:35.2f}")
    if profile:
        with cProfile.Profile() as profiler:
            for rows in num_rows or (128, 512):
                time_steps(rows)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
