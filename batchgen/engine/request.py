"""Request: one sample of a row while it is generated, and its outcome of a step. Knows token ids; no text or tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import TokenIds
from batchgen.request_output import FinishReason
from batchgen.sampling_params import SamplingParams
from batchgen.stats.prompt_tokens import PromptAccount

PENDING_TOKEN = -1  # placeholder for a token that a step in flight samples: its id is not on the host yet


class RequestStatus(IntEnum):
    """The state of a request. FINISHED comes last, so that `status >= FINISHED` is the test."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2  # lost its blocks; waits to be recomputed
    FINISHED = 3


class StopCondition(Protocol):
    """Watches the tokens of one request for text that ends it. The engine itself knows nothing of text."""

    def feed(self, token_id: int) -> bool:
        """Take the next token; return whether the completion ends with it."""


class TokenConstraint(Protocol):
    """Decides which tokens may come next in one request. The engine does not know by which grammar."""

    @property
    def error(self) -> str | None:
        """Why no token is allowed; None if the reason is not known."""

    def allowed(self) -> npt.NDArray[np.uint8]:
        """Return a bit mask: token t is bit t % 8 of byte t // 8. It may be longer than the model's vocabulary."""

    def feed(self, token_id: int) -> bool:
        """Take the next token, which was allowed and is no end token; return whether nothing can follow it."""


class Thinking(Protocol):
    """Follows the thinking that may precede the answer of one request. The engine does not know how it is marked.

    It has the stop condition and the constraint of the answer, and feeds them.
    """

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun."""

    @property
    def num_tokens(self) -> int:
        """Leading tokens of the completion that are no part of the answer, as far as that is known."""

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end the completion if one of them comes next."""

    @property
    def constraint(self) -> TokenConstraint | None:
        """What decides about the next token, if anything does. Not to be fed."""

    @property
    def needs_results(self) -> bool:
        """Whether it depends on the next token which tokens are allowed after it."""

    def feed(self, token_id: int) -> bool:
        """Take the next token, which is no end token; return whether the completion ends with it."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and one growing completion of it.

    Invariant: the KV of tokens `[0, num_computed_tokens)` is in the blocks of `block_table` (or will be at the end of
    the current step); `block_table` is append-only until the request is preempted or finished.
    """

    row_index: int
    prompt_token_ids: TokenIds  # [num_prompt_tokens]; may be a view of a memory-mapped file
    params: SamplingParams
    rng_key: int  # 64 bits derived from the seed and the key of the row: the only source of randomness of this row
    # Most tokens to generate: what the context limit allows, and params.max_tokens, as soon as the answer has begun.
    max_tokens: int
    # Leading tokens that this prompt shares with the next one in visiting order; None: the next one is not known.
    shared_with_next: int | None = None
    end_token_ids: frozenset[int] = frozenset()  # each of these ends the completion and is not part of its text
    stop_condition: StopCondition | None = None
    constraint: TokenConstraint | None = None
    thinking: Thinking | None = None  # of a request that may think; replaces the three conditions above
    sample_index: int = 0
    # The other samples of the row. The first sample keeps them until its prompt is computed, where they start.
    later_samples: Sequence[Request] = ()
    account: PromptAccount = field(default_factory=PromptAccount)  # for the report; nothing is decided by it

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    output_token_ids: list[int] = field(default_factory=list)
    output_logprobs: list[TokenLogprobs] = field(default_factory=list)  # one per token if params.logprobs is set
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the prompt's second token on
    num_pending_tokens: int = 0  # tokens of the completion that a step in flight samples
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # prompt tokens found in the prefix cache; set at the first admission
    num_indexed_blocks: int = 0  # leading blocks of block_table that were offered to the prefix cache
    num_lost_tokens: int = 0  # computed before the last preemption

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the completion so far, pending ones included."""
        return len(self.output_token_ids) + self.num_pending_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and completion so far; `num_computed_tokens` catches up with this number."""
        return len(self.prompt_token_ids) + self.num_output_tokens

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of the completion so far, pending ones included, without those of its thinking."""
        return self.num_output_tokens - (0 if self.thinking is None else self.thinking.num_tokens)

    @property
    def next_end_token_ids(self) -> frozenset[int]:
        """The tokens that end the completion if one of them comes next."""
        return self.end_token_ids if self.thinking is None else self.thinking.end_token_ids

    @property
    def next_constraint(self) -> TokenConstraint | None:
        """What decides about the next token, if anything does."""
        return self.constraint if self.thinking is None else self.thinking.constraint

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to compute: the request has finished, or its last token is pending."""
        return self.status >= RequestStatus.FINISHED or self.num_output_tokens >= self.max_tokens

    @property
    def needs_results(self) -> bool:
        """Whether its next step depends on the outcome of the last one, not only on the number of tokens."""
        has_long_bad_words = any(len(word) > 1 for word in self.params.bad_words)
        is_constrained = self.constraint is not None if self.thinking is None else self.thinking.needs_results
        return self.params.penalises or has_long_bad_words or is_constrained or self.computes_whole_prompt

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def computes_whole_prompt(self) -> bool:
        """Whether logits of prompt tokens are still to be computed, so that none can come from the prefix cache."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Return tokens `[start, stop)` of prompt and completion together, with PENDING_TOKEN for pending ones."""
        num_prompt = self.num_prompt_tokens
        ids: list[int] = self.prompt_token_ids[start : min(stop, num_prompt)].tolist() if start < num_prompt else []
        ids += self.output_token_ids[max(start - num_prompt, 0) : max(stop - num_prompt, 0)]
        return ids + [PENDING_TOKEN] * (min(stop, self.num_tokens) - start - len(ids))

    def take(self, outcome: Outcome) -> None:
        """Take the outcome of a step."""
        if isinstance(outcome, Failed):
            self.finish(FinishReason.ERROR, outcome.error)
        else:
            self.append(outcome)

    def append(self, sampled: SampledToken) -> None:
        """Append a sampled token, and finish if it ends the completion."""
        token_id, self.num_pending_tokens = sampled.token_id, 0
        self.output_token_ids.append(token_id)
        if sampled.logprobs is not None:
            self.output_logprobs.append(sampled.logprobs)
        if token_id in self.next_end_token_ids or self._ends_with(token_id):
            self.finish(FinishReason.STOP)
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish(FinishReason.LENGTH)

    def _ends_with(self, token_id: int) -> bool:
        """Feed a token that is no end token; return whether the completion ends with it."""
        watchers = (self.stop_condition, self.constraint, self.thinking)
        is_ended = any(watcher.feed(token_id) for watcher in watchers if watcher is not None)
        if self.thinking is not None and self.thinking.is_over and self.params.max_tokens is not None:
            self.max_tokens = min(self.max_tokens, self.thinking.num_tokens + self.params.max_tokens)
        return is_ended

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        assert self.status < RequestStatus.FINISHED
        self.num_pending_tokens = 0
        self.status, self.finish_reason, self.error = RequestStatus.FINISHED, reason, error


class TokenLogprobs(NamedTuple):
    """One token under the raw distribution of the model, before temperature, penalties and filters."""

    token_id: int
    logprob: float
    rank: int  # from 1
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the most likely tokens, best first


class SampledToken(NamedTuple):
    """The next token of a request."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Failed(NamedTuple):
    """No token could be sampled; the request ends with this error."""

    error: str


Outcome = SampledToken | Failed


def remove_finished(running: Sequence[Request], waiting_rows: Collection[int]) -> list[Request]:
    """Return `running` without the finished requests; `waiting_rows` are the rows with samples in the queue.

    If the row before a removed one is preempted and admitted again, its next row is the one after the removed row, so
    its `shared_with_next` becomes the minimum over both. All samples of one row have the same next row.
    """
    remaining: list[Request] = []
    remaining_rows = {request.row_index for request in running if not request.is_done}.union(waiting_rows)
    for request in running:
        if not request.is_done:
            remaining.append(request)
        elif remaining and request.shared_with_next is not None:
            before = remaining[-1]
            if before.row_index == request.row_index or request.row_index not in remaining_rows:
                assert before.shared_with_next is not None
                before.shared_with_next = min(before.shared_with_next, request.shared_with_next)
    return remaining
