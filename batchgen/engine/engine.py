"""Engine: the loop. The scheduler decides, the runner computes, the counters watch; the engine only calls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from batchgen.engine.request import Request
from batchgen.engine.scheduler import Scheduler, SchedulerOutput
from batchgen.stats.counters import RunStats, StepStats


class Runner(Protocol):
    """Computes a step; `ModelRunner` with a real model."""

    def run(self, step: SchedulerOutput) -> Sequence[int | str]:
        """For every sampled chunk in order: the next token id, or the error that ends the row."""


class Engine:
    """Runs requests in the order given, many at a time."""

    def __init__(self, scheduler: Scheduler, runner: Runner, stats: RunStats) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.stats = stats

    def run(self, requests: Iterable[Request]) -> Iterator[list[Request]]:
        """Take requests as they are needed; yields after every step those that ended, each exactly once."""
        source = iter(requests)
        while self._fill(source):
            yield self.step()

    def step(self) -> list[Request]:
        """One forward of the model over everything that fits; returns the requests that ended."""
        step = self.scheduler.schedule()
        outcomes = self.runner.run(step)
        self._observe(step)
        return self.scheduler.update(step, outcomes)

    def _fill(self, source: Iterator[Request]) -> bool:
        """Keep a step's worth of requests waiting; False when nothing is left to do."""
        while len(self.scheduler.waiting) < self.scheduler.max_num_seqs:
            request = next(source, None)
            if request is None:
                break
            self.scheduler.add(request)
        return bool(self.scheduler.waiting or self.scheduler.running)

    def _observe(self, step: SchedulerOutput) -> None:
        for admission in step.admissions:
            request = admission.request
            first = request.num_lost_tokens == 0
            self.stats.observe_admission(
                request.num_prompt_tokens, admission.num_matched_tokens, admission.num_recomputed_tokens, first=first
            )
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        size = scheduler.cache.block_size
        self.stats.observe_step(
            StepStats(
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
                num_tokens=step.num_tokens,
                num_sampled=sum(chunk.is_sampled for chunk in step.chunks),
                num_used_blocks=pool.num_used,
                num_idle_blocks=pool.num_idle,
                num_free_blocks=pool.num_free,
                # A block that is not full has one holder, so empty slots can be counted row by row.
                num_empty_slots=sum(len(r.block_table) * size - r.num_computed_tokens for r in scheduler.running),
                num_preempted=len(step.preempted),
                waits_for_blocks=step.waits_for_blocks,
            )
        )
