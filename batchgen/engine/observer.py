"""Observer: reports what happens in the engine to the counters of `stats/`. Decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from batchgen.engine.request import Request, RequestStatus
from batchgen.engine.scheduler import Scheduler
from batchgen.engine.step import Admission, SchedulerOutput
from batchgen.stats.counters import RowTime, RunStats, StepStats
from batchgen.stats.prompt_tokens import origin_of_prompt


class Observer:
    """Watches the scheduler of one run. Times are seconds since `begin`."""

    def __init__(self, scheduler: Scheduler, stats: RunStats) -> None:
        self.stats = stats
        self._scheduler = scheduler
        self._begin = self._step_begin = self._last_done = time.perf_counter()
        self._in_flight: deque[tuple[float, StepStats]] = deque()  # (start of the step, its counts at that time)

    def begin(self) -> None:
        """Record that the run begins."""
        self._begin = time.perf_counter()

    def begin_step(self) -> None:
        """Record that a step is about to be scheduled."""
        self._step_begin = time.perf_counter()

    def step_begun(self, step: SchedulerOutput) -> None:
        """Record that the runner has started the step. No request was removed since the step was scheduled."""
        for admission in step.admissions:
            self._observe_admission(admission)
        self._in_flight.append((self._step_begin, self._step_stats(step)))

    def step_done(self, step: SchedulerOutput) -> None:
        """Record that the outcomes of the oldest step in flight are known; the requests have not taken them yet.

        The time of a step that was started while another was in flight counts from the end of that one.
        """
        begin, at_start = self._in_flight.popleft()
        begin, self._last_done = max(begin, self._last_done), time.perf_counter()
        num_overrun = sum(request.status is RequestStatus.FINISHED for request in step.sampled_requests)
        stats = replace(
            at_start,
            seconds=self._last_done - begin,
            num_sampled_tokens=at_start.num_sampled_tokens - num_overrun,
            num_overrun_tokens=num_overrun,
        )
        self.stats.observe_step(stats, self._last_done - self._begin)

    def rows_done(self, finished: Sequence[Request]) -> None:
        """Record that these requests finished."""
        now = time.perf_counter() - self._begin
        for request in finished:
            account = request.account
            # A later sample may finish with the step that computes its prompt, before it is admitted.
            seconds = 0.0 if account.admitted_at is None else now - account.admitted_at
            row = RowTime(seconds, request.row_index, len(request.output_token_ids))
            self.stats.observe_end(row, account.group, now)

    def _observe_admission(self, admission: Admission) -> None:
        request, num_matched = admission.request, admission.num_matched_tokens
        account = request.account
        if account.admitted_at is None:
            account.admitted_at = self._step_begin - self._begin
        if not admission.is_first:
            self.stats.observe_recompute(admission.num_recomputed_tokens)
            return
        account.origin = origin_of_prompt(
            request.num_prompt_tokens,
            self._scheduler.cache.block_size,
            num_matched=num_matched,
            num_copied=admission.num_copied_tokens,
            num_seen=num_matched if account.num_seen_tokens is None else account.num_seen_tokens,
            has_evicted=self._scheduler.cache.num_evictions > 0,
            is_scored=request.params.prompt_logprobs is not None,
        )
        self.stats.observe_prompt(account.origin, account.group)

    def _step_stats(self, step: SchedulerOutput) -> StepStats:
        cache, running = self._scheduler.cache, self._scheduler.running
        holders = [request for request in (*running, *self._scheduler.waiting) if request.block_table]
        num_prefill = sum(min(c.stop, c.request.num_prompt_tokens) - c.start for c in step.chunks if c.is_prefill)
        return StepStats(
            seconds=0.0,  # set when the step is done
            num_running=len(running),
            num_waiting=len(self._scheduler.waiting),
            num_prefill_tokens=num_prefill,
            num_decode_tokens=step.num_tokens - num_prefill,
            num_sampled_tokens=len(step.sampled_requests),
            num_overrun_tokens=0,
            num_used_blocks=cache.pool.num_used,
            num_logical_blocks=sum(len(request.block_table) for request in holders),
            num_stored_tokens=sum(request.num_computed_tokens for request in running),
            num_idle_blocks=cache.pool.num_idle,
            num_free_blocks=cache.pool.num_free,
            num_empty_slots=sum(_empty_slots(holders, cache.block_size).values()),
            num_preempted=len(step.preempted),
            waits_for_blocks=step.waits_for_blocks,
            waits_for_reservation=step.waits_for_reservation,
            num_held_back=self._num_held_back(step),
            num_refused_though_free=step.num_refused_though_free,
        )

    def _num_held_back(self, step: SchedulerOutput) -> int:
        """Return how many waiting requests are within `max_num_seqs` but do not fit the pool."""
        room = self._scheduler.max_num_seqs - len(self._scheduler.running)
        return min(len(self._scheduler.waiting), room) if step.waits_for_blocks else 0


def _empty_slots(holders: Sequence[Request], block_size: int) -> dict[int, int]:
    """Return block id -> empty slots. Only last blocks have any; samples that share one have filled it equally far."""
    return {request.block_table[-1]: -request.num_computed_tokens % block_size for request in holders}
