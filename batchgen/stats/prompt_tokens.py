"""PromptTokens: where the KV of each prompt token came from when its row was first admitted.

    prompt_tokens = hit + copied + first + tail + last + evicted + order + scored

This sum is asserted wherever it is formed. Tokens recomputed after a preemption are counted in `RunStats`, never here.
PromptAccount is what the report needs to know of one request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Numbers of prompt tokens by origin."""

    hit: int = 0  # found in full blocks
    copied: int = 0  # found at the beginning of one more block, and copied
    first: int = 0  # no row visited before has this full block
    tail: int = 0  # not in a full block
    last: int = 0  # in a full block that was cached, but the prompt's last token must be computed for its logits
    evicted: int = 0  # was cached, and evicted when the pool was full
    order: int = 0  # a row visited before has it, but has not computed it yet
    scored: int = 0  # a row visited before has it, but this row needs its logits (prompt_logprobs)

    def __add__(self, other: PromptTokens) -> PromptTokens:
        return PromptTokens(*map(int.__add__, _COUNTS(self), _COUNTS(other)))

    @property
    def total(self) -> int:
        return sum(_COUNTS(self))

    @property
    def found(self) -> int:
        """The tokens that were not computed: found in full blocks or copied."""
        return self.hit + self.copied

    @property
    def misses(self) -> dict[str, int]:
        """The tokens that were computed, by cause."""
        return {cause.name: getattr(self, cause.name) for cause in fields(self)[2:]}

    def with_copied(self, num_tokens: int) -> PromptTokens:
        """Return these counts with the first `num_tokens` missed tokens of the prompt counted as copied."""
        left, misses = num_tokens, {}
        for cause in ("order", "evicted", "last", "first", "tail"):
            misses[cause] = max(getattr(self, cause) - left, 0)
            left -= getattr(self, cause) - misses[cause]
        return PromptTokens(self.hit, self.copied + num_tokens - left, **misses)


_COUNTS = attrgetter(*(count.name for count in fields(PromptTokens)))  # dataclasses.astuple deep-copies every number


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

    `num_matched` tokens were found in full blocks and `num_copied` directly after them. The first `num_seen` tokens are
    also in a row visited before, as the plan knows. `has_evicted`: the cache has evicted blocks in this run, which is
    then why a seen block is missing. `is_scored`: the whole prompt is computed, whatever the cache holds.
    """
    num_full = num_tokens // block_size * block_size
    num_seen = min(num_seen // block_size * block_size, num_full)
    assert num_matched <= num_seen, "a block was matched that no earlier row has"
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
    ).with_copied(num_copied)
    assert origin.total == num_tokens, "a prompt token has no origin or two origins"
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
