"""One step's decision, as nouns: what is computed, what is copied, who came and who left. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchgen.engine.request import Request


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


class BlockCopy(NamedTuple):
    """Everything in block `source`, as it was before this step, goes to block `target` too.

    All copies of a step are read before the first is written, and come before the step's own K and V: a source may
    have been given away in this very step.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that got its first blocks, or got them again after a preemption."""

    request: Request
    is_first: bool  # of this row: its prompt has not been accounted for
    num_matched_tokens: int  # found in the prefix cache
    num_recomputed_tokens: int  # computed once before and lost by preemption


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision."""

    num_tokens_left: int  # of the step's token budget
    chunks: list[ScheduledChunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)  # alone in the pool and still too large for it
    waits_for_blocks: bool = False  # a waiting request was held back by the pool, not by the budget
    waits_for_reservation: bool = False  # and only by the room kept for expected output
    num_refused_though_free: int = 0  # external fragmentation, which blocks of one size cannot have

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def sampled_requests(self) -> list[Request]:
        """Whoever takes a token in this step, in the order of the outcomes."""
        return [request for chunk in self.chunks for request in chunk.samples]
