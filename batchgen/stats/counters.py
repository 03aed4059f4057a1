"""Counters that the engine feeds with events. Knows the definitions of the figures and no object of the engine.

    internal fragmentation of a step = 1 - stored tokens / (block_size * distinct blocks held by running rows)

Shared blocks count once, idle cached blocks not at all (DESIGN section 6).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step, seen when its tokens are stored and no row has left yet."""

    num_running: int
    num_waiting: int
    num_tokens: int  # computed in this step
    num_sampled: int  # of those, positions that gave a new token
    num_used_blocks: int
    num_idle_blocks: int
    num_free_blocks: int
    num_empty_slots: int  # slots of used blocks that hold no token
    num_preempted: int
    waits_for_blocks: bool


@dataclass(slots=True)
class RunStats:
    """Sums over a run. Tokens unless the name says otherwise."""

    block_size: int
    num_steps: int = 0
    num_computed_tokens: int = 0
    num_sampled_tokens: int = 0
    num_prompt_tokens: int = 0  # each counted once, at its row's first admission
    num_hit_tokens: int = 0
    num_recomputed_tokens: int = 0  # lost by preemption and computed again; never a hit
    num_preemptions: int = 0
    num_waiting_steps: int = 0  # steps in which the pool, not the budget, held a row back
    num_used_slots: int = 0  # summed over steps
    num_empty_slots: int = 0  # summed over steps
    peak_internal_fragmentation: float | None = None
    peak_used_blocks: int = 0
    peak_running: int = 0
    last_step: StepStats | None = None  # for the progress bar

    def observe_admission(self, num_prompt_tokens: int, num_matched: int, num_recomputed: int, *, first: bool) -> None:
        """A row got its blocks, for the first time or again after a preemption."""
        if first:
            self.num_prompt_tokens += num_prompt_tokens
            self.num_hit_tokens += num_matched
        self.num_recomputed_tokens += num_recomputed

    def observe_step(self, step: StepStats) -> None:
        """A step has run."""
        self.num_steps += 1
        self.num_computed_tokens += step.num_tokens
        self.num_sampled_tokens += step.num_sampled
        self.num_preemptions += step.num_preempted
        self.num_waiting_steps += step.waits_for_blocks
        self.peak_used_blocks = max(self.peak_used_blocks, step.num_used_blocks)
        self.peak_running = max(self.peak_running, step.num_running)
        self._observe_slots(step.num_used_blocks * self.block_size, step.num_empty_slots)
        self.last_step = step

    def _observe_slots(self, num_used_slots: int, num_empty_slots: int) -> None:
        if num_used_slots == 0:
            return
        self.num_used_slots += num_used_slots
        self.num_empty_slots += num_empty_slots
        fragmentation = num_empty_slots / num_used_slots
        self.peak_internal_fragmentation = max(self.peak_internal_fragmentation or 0.0, fragmentation)

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens; None when no prompt was admitted."""
        return self.num_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None

    @property
    def internal_fragmentation(self) -> float | None:
        """Mean over time of the share of held slots that store nothing; None when nothing ran."""
        return self.num_empty_slots / self.num_used_slots if self.num_used_slots else None
