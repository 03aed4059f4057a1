"""The decision for one step: what is computed and copied, who is admitted and preempted. Decides nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchgen.engine.request import Request

# Most prompt tokens whose logits one step computes. Rows of logits are the largest tensor of a forward.
MAX_PROMPT_LOGITS = 256


class OutOfMemory(Exception):
    """The device has no memory for a step. Nothing of the step was computed."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `[start, start + num_tokens)` of a request, computed in this step."""

    request: Request
    start: int
    num_tokens: int
    # The requests that sample their next token from the chunk's last logits: none unless the chunk reaches the last
    # known token; all samples of the row at the end of the prompt.
    samples: Sequence[Request] = ()

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether the chunk computes prompt tokens. For statistics; nothing is decided by it."""
        return self.start < self.request.num_prompt_tokens

    @property
    def scored(self) -> range:
        """Positions whose logits score the next prompt token, as far as that is asked for and not known yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return range(0)
        return range(max(self.start, len(request.prompt_logprobs)), min(self.stop, request.num_prompt_tokens - 1))


class BlockCopy(NamedTuple):
    """A copy of block `source`, as it was before this step, to block `target`.

    All sources of a step are read before the first target is written, and before the step writes its own K and V: a
    source may have been freed and allocated again in the same step.
    """

    source: int
    target: int


class Repeat(NamedTuple):
    """A second write of K and V: tokens `[start, stop)` of a request, computed in this step, go to `target` too."""

    request: Request
    start: int
    stop: int
    target: int  # a block; the tokens take the same slots in it as in their own block


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that was moved from waiting to running, for the first time or after a preemption."""

    request: Request
    is_first: bool  # the first admission of this request: its prompt has not been counted yet
    num_matched_tokens: int  # found in the prefix cache in full blocks
    num_copied_tokens: int  # found there at the beginning of one more block
    num_recomputed_tokens: int  # computed before, and lost by preemption


@dataclass(slots=True)
class SchedulerOutput:
    """The scheduler's decision for one step."""

    num_tokens_left: int  # of the step's token budget
    num_prompt_logits_left: int = MAX_PROMPT_LOGITS
    chunks: list[ScheduledChunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)  # too large for the pool even when alone in it
    waits_for_blocks: bool = False  # a waiting request was held back by the pool, not by the token budget
    waits_for_reservation: bool = False  # and only by the blocks reserved for expected output
    num_refused_though_free: int = 0  # external fragmentation; 0, as all blocks have one size

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do: every request waits for the outcomes of the step before."""
        return not (self.chunks or self.preempted or self.failed)

    @property
    def needs_results(self) -> bool:
        """Whether the next step cannot be scheduled before the outcomes of this one are known."""
        return not self.chunks or any(chunk.request.needs_results for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    def num_schedulable_tokens(self, request: Request) -> int:
        """Return how many uncomputed tokens of the request fit the rest of the step's budgets."""
        num_tokens = min(request.num_uncomputed_tokens, self.num_tokens_left)
        return min(num_tokens, self.num_prompt_logits_left) if request.computes_whole_prompt else num_tokens

    @property
    def sampled_requests(self) -> list[Request]:
        """The requests that sample a token in this step, in the order of the outcomes."""
        return [request for chunk in self.chunks for request in chunk.samples]
