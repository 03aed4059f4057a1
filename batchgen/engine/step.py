"""One step's decision, as nouns: what is computed, what is copied, who came and who left. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchgen.engine.request import Request

# Places in prompts whose logits one step computes; logits are the widest thing a model makes.
MAX_PROMPT_LOGITS = 256


class OutOfMemory(Exception):
    """The device has no memory for a step, of which nothing was computed."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `[start, start + num_tokens)` of a request, computed in this step."""

    request: Request
    start: int
    num_tokens: int
    # The requests that take their next token from the chunk's logits: none before it reaches the last known token; at
    # the end of a prompt all samples of the row.
    samples: Sequence[Request] = ()

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether it computes prompt tokens. For statistics; nothing is decided by it."""
        return self.start < self.request.num_prompt_tokens

    @property
    def scored(self) -> range:
        """Places whose logits say how likely the prompt's next token was, where that is asked for and not known yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return range(0)
        return range(max(self.start, len(request.prompt_logprobs)), min(self.stop, request.num_prompt_tokens - 1))


class BlockCopy(NamedTuple):
    """Everything in block `source`, as it was before this step, goes to block `target` too.

    All copies of a step are read before the first is written, and come before the step's own K and V: a source may
    have been given away in this very step.
    """

    source: int
    target: int


class Repeat(NamedTuple):
    """K and V of the tokens `[start, stop)` of a request, computed in this step, go to block `target` too."""

    request: Request
    start: int
    stop: int
    target: int  # at the same places in the block


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that got its first blocks, or got them again after a preemption."""

    request: Request
    is_first: bool  # of this row: its prompt has not been accounted for
    num_matched_tokens: int  # found in the prefix cache in full blocks
    num_copied_tokens: int  # found there at the beginning of one more
    num_recomputed_tokens: int  # computed once before and lost by preemption


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision."""

    num_tokens_left: int  # of the step's token budget
    num_prompt_logits_left: int = MAX_PROMPT_LOGITS
    chunks: list[ScheduledChunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)  # alone in the pool and still too large for it
    waits_for_blocks: bool = False  # a waiting request was held back by the pool, not by the budget
    waits_for_reservation: bool = False  # and only by the room kept for expected output
    num_refused_though_free: int = 0  # external fragmentation, which blocks of one size cannot have

    @property
    def is_idle(self) -> bool:
        """Whether nothing is decided: all there is waits for the results of the step before."""
        return not (self.chunks or self.preempted or self.failed)

    @property
    def needs_results(self) -> bool:
        """Whether the next step cannot be decided without the outcomes of this one."""
        return not self.chunks or any(chunk.request.needs_results for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    def num_schedulable_tokens(self, request: Request) -> int:
        """How many tokens of the request fit what is left of the step."""
        num_tokens = min(request.num_uncomputed_tokens, self.num_tokens_left)
        return min(num_tokens, self.num_prompt_logits_left) if request.computes_whole_prompt else num_tokens

    @property
    def sampled_requests(self) -> list[Request]:
        """Whoever takes a token in this step, in the order of the outcomes."""
        return [request for chunk in self.chunks for request in chunk.samples]
