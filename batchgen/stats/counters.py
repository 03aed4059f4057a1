"""RunStats: everything that is counted while a job runs. The engine reports events; this module defines the figures.

    internal fragmentation of a step = 1 - stored tokens / (block_size * distinct blocks held by running rows)
    sharing of a step                = 1 - physical blocks / logical blocks

Shared blocks count once, idle cached blocks not at all. A mean over steps is weighted by its denominator.

StepLog keeps a bounded sample of a run's steps, for plots and for `stats/steps.parquet`.

SlowestRows keeps the few rows that took longest, however many ran.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field

from batchgen.stats.prompt_tokens import PromptTokens

_MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step, observed after it has begun and before any row has left."""

    seconds: float  # duration; of a step that began while another was in flight: the time since that one ended
    num_running: int
    num_waiting: int  # requests in the engine's queue, not all remaining rows of the job
    num_prefill_tokens: int
    num_decode_tokens: int
    num_sampled_tokens: int
    num_overrun_tokens: int  # computed for rows that had ended, which the host did not know yet
    num_used_blocks: int  # held by running rows and by samples about to run; shared blocks count once
    num_logical_blocks: int  # the same; shared blocks count once for every row and sample
    num_stored_tokens: int  # of running rows; in shared blocks counted once for every row and sample
    num_idle_blocks: int
    num_free_blocks: int
    num_empty_slots: int  # slots of used blocks that hold no token
    num_preempted: int
    waits_for_blocks: bool  # a row was not admitted because the pool was too small
    waits_for_reservation: bool  # that row's prompt would have fitted, but not its expected output
    num_held_back: int  # rows that a larger pool would have admitted
    num_refused_though_free: int  # allocations refused while enough blocks were free; must be 0


class StepLog:
    """Keeps every step at first, and then every 2nd, 4th, … so that at most 4,096 are kept."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float, StepStats]] = []  # (step number, seconds since the start, step)
        self._stride = 1
        self._num_steps = 0

    def append(self, end: float, step: StepStats) -> None:
        """Record a step that ended `end` seconds after the start of the run."""
        if self._num_steps % self._stride == 0:
            self.samples.append((self._num_steps, end, step))
        self._num_steps += 1
        if len(self.samples) > _MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._stride *= 2


_MOST_ROWS = 20


@dataclass(frozen=True, slots=True, order=True)
class RowTime:
    """How long one row took."""

    seconds: float  # from its first admission to its end
    row_index: int  # in the input, from 0
    num_output_tokens: int


class SlowestRows:
    """Keeps the 20 slowest of all rows that it is given."""

    def __init__(self) -> None:
        self._heap: list[RowTime] = []  # a min-heap: the fastest of them first

    def observe(self, row: RowTime) -> None:
        """Record a row that ended."""
        if len(self._heap) < _MOST_ROWS:
            heapq.heappush(self._heap, row)
        else:
            heapq.heappushpop(self._heap, row)

    def rows(self) -> list[RowTime]:
        """Return the kept rows, slowest first."""
        return sorted(self._heap, reverse=True)


@dataclass(slots=True)
class GroupStats:
    """Sums over the rows of one prefix group."""

    num_rows: int = 0
    prompt: PromptTokens = field(default_factory=PromptTokens)
    num_output_tokens: int = 0


@dataclass(slots=True)
class RunStats:
    """Sums over a run, in tokens unless the name says otherwise."""

    block_size: int
    max_model_len: int  # slots that a static reservation would hold for every running row
    prompt: PromptTokens = field(default_factory=PromptTokens)
    groups: dict[int | None, GroupStats] = field(default_factory=dict)  # None: rows in no group
    num_output_tokens: int = 0
    num_samples: int = 0  # completions that ended
    num_recomputed_tokens: int = 0  # lost by preemption and computed again; never a hit

    num_steps: int = 0
    prefill_seconds: float = 0.0  # each step's time is divided in proportion to its prefill and decode tokens
    decode_seconds: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_sampled_tokens: int = 0  # those of rows that are still running included
    num_overrun_tokens: int = 0  # computed and sampled for rows that had ended, which the host did not know yet
    num_preemptions: int = 0
    num_waiting_steps: int = 0  # steps in which the pool, not the token budget, kept a row waiting
    num_reservation_steps: int = 0  # of those: steps in which only the reservation for expected output did
    num_refused_though_free: int = 0  # external fragmentation; must stay 0
    num_held_back: int = 0  # rows that only the pool kept from running, summed over steps

    # Summed over steps, for means over time.
    num_used_slots: int = 0
    num_empty_slots: int = 0
    num_running: int = 0
    num_logical_slots: int = 0  # shared blocks count once for every row and sample
    num_stored_tokens: int = 0
    peak_internal_fragmentation: float | None = None
    peak_used_blocks: int = 0
    peak_running: int = 0

    log: StepLog = field(default_factory=StepLog)
    last_step: StepStats | None = None  # for the progress bar
    row_ends: array[float] = field(default_factory=lambda: array("f"))  # seconds since the start, in order of ending
    slowest: SlowestRows = field(default_factory=SlowestRows)

    def observe_prompt(self, origin: PromptTokens, group: int | None) -> None:
        """Count the prompt of a row that is admitted for the first time."""
        self.prompt += origin
        group_stats = self.groups.setdefault(group, GroupStats())
        group_stats.num_rows += 1
        group_stats.prompt += origin

    def observe_recompute(self, num_tokens: int) -> None:
        """Count the tokens that a preempted row, now admitted again, computes a second time."""
        self.num_recomputed_tokens += num_tokens

    def observe_end(self, row: RowTime, group: int | None, seconds: float) -> None:
        """Count a sample that ended `seconds` after the start of the run."""
        self.num_output_tokens += row.num_output_tokens
        self.num_samples += 1
        self.groups[group].num_output_tokens += row.num_output_tokens
        self.row_ends.append(seconds)
        self.slowest.observe(row)

    def observe_step(self, step: StepStats, seconds: float) -> None:
        """Count a step that ended `seconds` after the start of the run."""
        num_tokens = step.num_prefill_tokens + step.num_decode_tokens
        prefill_share = step.num_prefill_tokens / num_tokens if num_tokens else 0.0
        self.num_steps += 1
        self.prefill_seconds += step.seconds * prefill_share
        self.decode_seconds += step.seconds * (1 - prefill_share)
        self.num_prefill_tokens += step.num_prefill_tokens
        self.num_decode_tokens += step.num_decode_tokens
        self.num_sampled_tokens += step.num_sampled_tokens
        self.num_overrun_tokens += step.num_overrun_tokens
        self.num_preemptions += step.num_preempted
        self.num_waiting_steps += step.waits_for_blocks
        self.num_reservation_steps += step.waits_for_reservation
        self.num_refused_though_free += step.num_refused_though_free
        self.num_held_back += step.num_held_back
        self.peak_used_blocks = max(self.peak_used_blocks, step.num_used_blocks)
        self.peak_running = max(self.peak_running, step.num_running)
        self._observe_slots(step)
        self.log.append(seconds, step)
        self.last_step = step

    def _observe_slots(self, step: StepStats) -> None:
        if step.num_used_blocks == 0:
            return
        num_slots = step.num_used_blocks * self.block_size
        self.num_used_slots += num_slots
        self.num_empty_slots += step.num_empty_slots
        self.num_running += step.num_running
        self.num_logical_slots += step.num_logical_blocks * self.block_size
        self.num_stored_tokens += step.num_stored_tokens
        fragmentation = step.num_empty_slots / num_slots
        self.peak_internal_fragmentation = max(self.peak_internal_fragmentation or 0.0, fragmentation)

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens found, in full blocks or by a copy; None when no prompt was admitted."""
        return ratio(self.prompt.found, self.prompt.total)

    @property
    def internal_fragmentation(self) -> float | None:
        """The share of held slots that store no token, over all steps."""
        return ratio(self.num_empty_slots, self.num_used_slots)

    @property
    def empty_slots_per_row(self) -> float | None:
        """The slots that a running row holds and does not fill; mean over rows and steps."""
        return ratio(self.num_empty_slots, self.num_running)

    @property
    def mean_running(self) -> float | None:
        """The number of rows that ran at once; mean over steps."""
        return ratio(self.num_running, self.num_steps)

    @property
    def held_back_share(self) -> float | None:
        """The share that the pool kept waiting, of the rows that could have run at once; mean over steps."""
        return ratio(self.num_held_back, self.num_running + self.num_held_back)

    @property
    def sharing(self) -> float | None:
        """The share of logical blocks that needed no physical block of their own, over all steps."""
        physical = ratio(self.num_used_slots, self.num_logical_slots)
        return None if physical is None else 1 - physical

    @property
    def static_reservation_waste(self) -> float | None:
        """The share of slots that would be empty if every running row reserved `max_model_len` slots."""
        filled = ratio(self.num_stored_tokens, self.num_running * self.max_model_len)
        return None if filled is None else 1 - filled

    def tail_share(self, share_of_rows: float = 0.05) -> float | None:
        """The share of the run's time that the last rows to end took; None if no row ended."""
        if not self.row_ends or self.row_ends[-1] <= 0:
            return None
        num_before = len(self.row_ends) - max(1, round(len(self.row_ends) * share_of_rows))
        begin = self.row_ends[num_before - 1] if num_before else 0.0
        return 1 - begin / self.row_ends[-1]


def ratio(part: float, whole: float) -> float | None:
    """Return `part / whole`, or None where `whole` is 0."""
    return part / whole if whole else None
