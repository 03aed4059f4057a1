"""PromptTokens: where the KV of each prompt token came from when its row was first admitted.

    prompt_tokens = hit + copied + first + tail + last + evicted + order + scored

is asserted for every prompt. Tokens that are recomputed after a preemption are not counted here (`stats/counters.py`).

PromptAccount: what the report needs to know of one request. Knows counts only; knows neither requests nor blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Numbers of prompt tokens by origin."""

    hit: int = 0  # found in full blocks
    copied: int = 0  # found at the beginning of one more block, and copied
    first: int = 0  # in a full block that no row visited before has
    tail: int = 0  # behind the last full block
    last: int = 0  # in a full block that is cached, but the last token of a prompt must be computed
    evicted: int = 0  # in a block that was evicted when the pool was full
    order: int = 0  # a row visited before has it, but has not computed it yet
    scored: int = 0  # a row visited before has it, but this row asks for prompt_logprobs and computes all of its prompt

    def __add__(self, other: PromptTokens) -> PromptTokens:
        return PromptTokens(*map(int.__add__, _COUNTS(self), _COUNTS(other)))

    @property
    def total(self) -> int:
        return sum(_COUNTS(self))

    @property
    def found(self) -> int:
        """Tokens that are not computed: those found in full blocks and those copied."""
        return self.hit + self.copied

    @property
    def misses(self) -> dict[str, int]:
        """Computed tokens by the cause of the miss."""
        return {cause.name: getattr(self, cause.name) for cause in fields(self)[2:]}

    def without(self, num_tokens: int) -> PromptTokens:
        """Return these counts with the first `num_tokens` missed tokens of the prompt copied instead."""
        left, misses = num_tokens, {}
        for cause in ("order", "evicted", "last", "first", "tail"):
            misses[cause] = max(getattr(self, cause) - left, 0)
            left -= getattr(self, cause) - misses[cause]
        return PromptTokens(self.hit, self.copied + num_tokens - left, **misses)


_COUNTS = attrgetter(*(count.name for count in fields(PromptTokens)))  # dataclasses.astuple deep-copies each count


def origin_of_prompt(
    num_tokens: int,
    block_size: int,
    *,
    num_matched: int,
    num_copied: int,
    num_seen: int,
    has_evicted: bool,
    is_scored: bool = False,
) -> PromptTokens:
    """Return the origin of every token of a prompt at its first admission.

    `num_matched` tokens were found in full blocks and `num_copied` behind them; `num_seen` leading tokens are in a row
    visited before, according to the plan; `has_evicted`: the cache has evicted blocks in this run, which is then the
    reason why a seen block is missing; `is_scored`: the whole prompt is computed, whatever is cached.
    """
    num_full = num_tokens // block_size * block_size
    num_seen = min(num_seen // block_size * block_size, num_full)
    assert num_matched <= num_seen, "a block was found that no row visited before has"
    if is_scored:
        return PromptTokens(first=num_full - num_seen, tail=num_tokens - num_full, scored=num_seen)
    missing = num_seen - num_matched
    last = min(missing, block_size) if num_seen == num_tokens else 0
    lost = missing - last
    origin = PromptTokens(
        hit=num_matched,
        first=num_full - num_seen,
        tail=num_tokens - num_full,
        last=last,
        evicted=lost if has_evicted else 0,
        order=0 if has_evicted else lost,
    ).without(num_copied)
    assert origin.total == num_tokens, "a prompt token has no origin, or two"
    return origin


@dataclass(slots=True)
class PromptAccount:
    """What the report counts of one request: first what the plan knows of its prompt, then what the run measures."""

    hit_ceiling: int = 0  # prompt tokens that an unlimited cache would find after the rows visited before
    num_unique_tokens: int = 0  # prompt tokens that no row visited before has
    num_seen_tokens: int | None = None  # leading tokens that some prompt visited before has too; None: not known
    group: int | None = None  # number of the prefix group that it is counted in
    # Set by the engine's observer, once, at the first admission.
    origin: PromptTokens | None = None
    admitted_at: float | None = None  # seconds since the start of the run
