"""Engine: the loop. The scheduler decides, the runner computes, the counters watch; the engine only calls them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from batchgen.engine.request import Request
from batchgen.engine.scheduler import Scheduler, SchedulerOutput
from batchgen.stats.counters import RunStats
from batchgen.stats.prompt_tokens import origin_of_prompt
from batchgen.stats.slowest_rows import RowTime
from batchgen.stats.step_log import StepStats


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
        self._begin = time.perf_counter()

    def run(self, requests: Iterable[Request]) -> Iterator[list[Request]]:
        """Take requests as they are needed; yields after every step those that ended, each exactly once."""
        source = iter(requests)
        self._begin = time.perf_counter()
        while self._fill(source):
            yield self.step()

    def step(self) -> list[Request]:
        """One forward of the model over everything that fits; returns the requests that ended."""
        begin = time.perf_counter()
        step = self.scheduler.schedule()
        outcomes = self.runner.run(step)
        self._observe_admissions(step, begin - self._begin)
        self._observe_step(step, time.perf_counter() - begin)
        finished = self.scheduler.update(step, outcomes)
        self._observe_ends(finished)
        return finished

    def _fill(self, source: Iterator[Request]) -> bool:
        """Keep a step's worth of requests waiting; False when nothing is left to do."""
        while len(self.scheduler.waiting) < self.scheduler.max_num_seqs:
            request = next(source, None)
            if request is None:
                break
            self.scheduler.add(request)
        return bool(self.scheduler.waiting or self.scheduler.running)

    # Events for the counters

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._begin

    def _observe_admissions(self, step: SchedulerOutput, begin: float) -> None:
        for admission in step.admissions:
            request, num_matched = admission.request, admission.num_matched_tokens
            if request.admitted_at is None:
                request.admitted_at = begin
            if request.num_lost_tokens:
                self.stats.observe_recompute(admission.num_recomputed_tokens)
                continue
            origin = origin_of_prompt(
                request.num_prompt_tokens,
                self.scheduler.cache.block_size,
                num_matched=num_matched,
                num_seen=num_matched if request.num_seen_tokens is None else request.num_seen_tokens,
                has_evicted=self.scheduler.cache.num_evictions > 0,
            )
            self.stats.observe_prompt(origin, request.group)

    def _observe_step(self, step: SchedulerOutput, seconds: float) -> None:
        """Called when the step's tokens are stored and no request has left yet."""
        cache, running = self.scheduler.cache, self.scheduler.running
        num_logical = sum(len(request.block_table) for request in running)
        num_computed = sum(request.num_computed_tokens for request in running)
        num_prefill = sum(min(c.stop, c.request.num_prompt_tokens) - c.start for c in step.chunks if c.is_prefill)
        self.stats.observe_step(
            StepStats(
                seconds=seconds,
                num_running=len(running),
                num_waiting=len(self.scheduler.waiting),
                num_prefill_tokens=num_prefill,
                num_decode_tokens=step.num_tokens - num_prefill,
                num_sampled_tokens=sum(chunk.is_sampled for chunk in step.chunks),
                num_used_blocks=cache.pool.num_used,
                num_logical_blocks=num_logical,
                num_idle_blocks=cache.pool.num_idle,
                num_free_blocks=cache.pool.num_free,
                # A block that is not full has one holder, so empty slots can be counted row by row.
                num_empty_slots=num_logical * cache.block_size - num_computed,
                num_preempted=len(step.preempted),
                waits_for_blocks=step.waits_for_blocks,
                waits_for_reservation=step.waits_for_reservation,
                num_held_back=self._num_held_back(step),
                num_refused_though_free=step.num_refused_though_free,
            ),
            self._elapsed,
        )

    def _num_held_back(self, step: SchedulerOutput) -> int:
        """Waiting rows for which `max_num_seqs` leaves room and the pool does not."""
        room = self.scheduler.max_num_seqs - len(self.scheduler.running)
        return min(len(self.scheduler.waiting), room) if step.waits_for_blocks else 0

    def _observe_ends(self, finished: Sequence[Request]) -> None:
        elapsed = self._elapsed
        for request in finished:
            assert request.admitted_at is not None
            row = RowTime(elapsed - request.admitted_at, request.row_index, len(request.output_token_ids))
            self.stats.observe_end(row, request.group, elapsed)
