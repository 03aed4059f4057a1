"""StepLog: a bounded sample of a run's steps, for plots and for `stats/steps.parquet`."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step, seen when it has begun and no row has left yet."""

    seconds: float  # the step itself; of one that began while another was under way, those since that one ended
    num_running: int
    num_waiting: int  # those the engine holds ready, not the whole rest of the job
    num_prefill_tokens: int
    num_decode_tokens: int
    num_sampled_tokens: int
    num_overrun_tokens: int  # sampled for rows that had ended, which was not known yet
    num_used_blocks: int  # held by running rows and by samples about to run, shared ones once
    num_logical_blocks: int  # the same, shared ones once a row and sample
    num_stored_tokens: int  # of running rows, in shared blocks once a row and sample
    num_idle_blocks: int
    num_free_blocks: int
    num_empty_slots: int  # slots of used blocks that hold no token
    num_preempted: int
    waits_for_blocks: bool  # the pool held a row back
    waits_for_reservation: bool  # of those: its prompt would have fitted, its expected output not
    num_held_back: int  # rows that could have run beside the others had the pool been larger
    num_refused_though_free: int  # allocations refused while enough blocks were free; must be 0


class StepLog:
    """Keeps every step at first, and then every 2nd, 4th, … so that never more than 4,096 are kept."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float, StepStats]] = []  # (number of the step, seconds since the start, step)
        self._stride = 1
        self._num_steps = 0

    def append(self, end: float, step: StepStats) -> None:
        """Take a step that ended `end` seconds after the start of the run."""
        if self._num_steps % self._stride == 0:
            self.samples.append((self._num_steps, end, step))
        self._num_steps += 1
        if len(self.samples) > _MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._stride *= 2
