"""PromptTokens: where the KV of a row's prompt came from when the row was first admitted, to the token.

    prompt_tokens = hit + copied + first + tail + last + evicted + order + scored

asserted wherever they are summed up. What is computed again after a preemption is counted elsewhere, never here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt tokens by origin."""

    hit: int = 0  # found in full blocks
    copied: int = 0  # found at the beginning of one more block, and copied
    first: int = 0  # no row visited before had this full block
    tail: int = 0  # not in a full block
    last: int = 0  # in a full block that was there, but the prompt's last token must be computed
    evicted: int = 0  # was there and was given away when the pool was full
    order: int = 0  # a row visited before has it, and it is not there yet
    scored: int = 0  # a row visited before has it, but its own logits are asked for (prompt_logprobs)

    def __add__(self, other: PromptTokens) -> PromptTokens:
        return PromptTokens(*map(int.__add__, _COUNTS(self), _COUNTS(other)))

    @property
    def total(self) -> int:
        return sum(_COUNTS(self))

    @property
    def found(self) -> int:
        """Not computed: in full blocks and by copies."""
        return self.hit + self.copied

    @property
    def misses(self) -> dict[str, int]:
        """Missed tokens by cause."""
        return {cause.name: getattr(self, cause.name) for cause in fields(self)[2:]}

    def without(self, num_tokens: int) -> PromptTokens:
        """`num_tokens` of the misses are copied after all: those that come first in the prompt."""
        left, misses = num_tokens, {}
        for cause in ("order", "evicted", "last", "first", "tail"):
            misses[cause] = max(getattr(self, cause) - left, 0)
            left -= getattr(self, cause) - misses[cause]
        return PromptTokens(self.hit, self.copied + num_tokens - left, **misses)


_COUNTS = attrgetter(*(count.name for count in fields(PromptTokens)))  # dataclasses.astuple copies, number by number


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
    """Account for a prompt at its first admission.

    `num_matched` tokens were found in full blocks and `num_copied` behind them; `num_seen` leading tokens had been in a
    row visited before (the plan knows); `has_evicted`: the cache has given blocks away in this run, which is then why a
    seen block is missing; `is_scored`: the prompt is computed whatever is there.
    """
    num_full = num_tokens // block_size * block_size
    num_seen = min(num_seen // block_size * block_size, num_full)
    assert num_matched <= num_seen, "a block was found that no earlier row has"
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
