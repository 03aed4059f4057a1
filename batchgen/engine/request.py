"""Request: one sample of a row being generated, and what a step gives it. Knows token ids, no text, no tensors."""

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
from batchgen.stats.prompt_tokens import PromptTokens

PENDING_TOKEN = -1  # stands for a token that a step under way gives: the device has it, the host not yet


class RequestStatus(IntEnum):
    """Where a request is. Finished comes last, so that `status >= FINISHED` is the test."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2  # gave its blocks back; waits to be computed again
    FINISHED = 3


class StopCondition(Protocol):
    """Watches the tokens of one request for text that ends it. The engine does not know what text is."""

    def feed(self, token_id: int) -> bool:
        """Take the next token; True when the completion ends here."""


class TokenConstraint(Protocol):
    """Says which tokens may come next in one request. The engine does not know why."""

    @property
    def error(self) -> str | None:
        """Why no token is allowed, where that is known."""

    def allowed(self) -> npt.NDArray[np.uint8]:
        """One bit a token: token t is bit t % 8 of byte t // 8; there may be more bytes than the model has ids for."""

    def feed(self, token_id: int) -> bool:
        """Take the next token, one that was allowed and ends nothing by itself; True when nothing can follow it."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and one growing completion of it.

    Invariant: the KV of tokens `[0, num_computed_tokens)` is in the blocks of `block_table` (or will be at the end of
    the step being run); `block_table` is append-only until the request is preempted or finished.
    """

    row_index: int
    prompt_token_ids: TokenIds  # [num_prompt_tokens]; may be a view of a mapped file
    params: SamplingParams
    rng_key: int  # 64 bits made of the job's seed and the row's key: all the randomness of this row
    max_tokens: int  # most tokens that may be generated: by params.max_tokens and by the context limit
    # Leading tokens this prompt has in common with the next one in visiting order; None: no order is known, keep all.
    shared_with_next: int | None = None
    hit_ceiling: int = 0  # prompt tokens that an endless cache would find after the rows before it
    num_unique_tokens: int = 0  # prompt tokens that no row before it has
    num_seen_tokens: int | None = None  # leading tokens that a prompt visited before has too; None: not known
    group: int | None = None  # the prefix group it is counted in
    end_token_ids: frozenset[int] = frozenset()  # any of these ends the completion and is no part of its text
    stop_condition: StopCondition | None = None
    constraint: TokenConstraint | None = None
    sample_index: int = 0
    # The other samples of the row, on the first one until its prompt is computed: they begin from there.
    later_samples: Sequence[Request] = ()

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    output_token_ids: list[int] = field(default_factory=list)
    output_logprobs: list[TokenLogprobs] = field(default_factory=list)  # one a token where params.logprobs asks
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the prompt's second token on; by the runner
    num_pending_tokens: int = 0  # tokens of the completion that a step under way gives
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    origin: PromptTokens | None = None  # set once, at the first admission, for the counters
    num_cached_tokens: int | None = None  # set once, at the first admission
    num_indexed_blocks: int = 0  # leading blocks of block_table that were offered to the prefix cache
    num_lost_tokens: int = 0  # computed before the last preemption
    admitted_at: float | None = None  # seconds since the start of the run, at the first admission

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the completion so far, those included that are pending."""
        return len(self.output_token_ids) + self.num_pending_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens so far; `num_computed_tokens` catches up with this number."""
        return len(self.prompt_token_ids) + self.num_output_tokens

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left to compute: it has ended, or its last token is pending."""
        return self.status >= RequestStatus.FINISHED or self.num_output_tokens >= self.max_tokens

    @property
    def needs_results(self) -> bool:
        """Whether its next step depends on more of what the last one gave than the number of tokens."""
        has_long_bad_words = any(len(word) > 1 for word in self.params.bad_words)
        is_adjusted = self.params.penalises or has_long_bad_words or self.constraint is not None
        return is_adjusted or self.computes_whole_prompt

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def computes_whole_prompt(self) -> bool:
        """Whether logits of prompt tokens are still wanted, so that none of them can come from the cache."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens `[start, stop)` of prompt and completion together, PENDING_TOKEN for those that are pending."""
        num_prompt = self.num_prompt_tokens
        ids: list[int] = self.prompt_token_ids[start : min(stop, num_prompt)].tolist() if start < num_prompt else []
        ids += self.output_token_ids[max(start - num_prompt, 0) : max(stop - num_prompt, 0)]
        return ids + [PENDING_TOKEN] * (min(stop, self.num_tokens) - start - len(ids))

    def take(self, outcome: Outcome) -> None:
        """Take what a step gave."""
        if isinstance(outcome, Failed):
            self.finish(FinishReason.ERROR, outcome.error)
        else:
            self.append(outcome)

    def append(self, sampled: SampledToken) -> None:
        """Take a sampled token, and finish if it ends the completion."""
        token_id, self.num_pending_tokens = sampled.token_id, 0
        self.output_token_ids.append(token_id)
        if sampled.logprobs is not None:
            self.output_logprobs.append(sampled.logprobs)
        if token_id in self.end_token_ids or self._ends_with(token_id):
            self.finish(FinishReason.STOP)
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish(FinishReason.LENGTH)

    def _ends_with(self, token_id: int) -> bool:
        """Whether a token that is no end token completes what watches the request."""
        watchers = (self.stop_condition, self.constraint)
        return any(watcher.feed(token_id) for watcher in watchers if watcher is not None)

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        assert self.status < RequestStatus.FINISHED
        self.num_pending_tokens = 0
        self.status, self.finish_reason, self.error = RequestStatus.FINISHED, reason, error


class TokenLogprobs(NamedTuple):
    """One token under the model's own distribution, before temperature, penalties and filters."""

    token_id: int
    logprob: float
    rank: int  # from 1
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the best, best first


class SampledToken(NamedTuple):
    """The next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Failed(NamedTuple):
    """The row ends here."""

    error: str


Outcome = SampledToken | Failed


def remove_finished(running: Sequence[Request], waiting_rows: Collection[int]) -> list[Request]:
    """`running` without those that are over; `waiting_rows` have samples that wait.

    Should the row before a gap come again, its next row is the one behind the gap: what it shares with that is the
    least over the gap. Samples of one row have the same next row.
    """
    staying: list[Request] = []
    left = {request.row_index for request in running if not request.is_done}.union(waiting_rows)
    for request in running:
        if not request.is_done:
            staying.append(request)
        elif staying and request.shared_with_next is not None:
            before = staying[-1]
            if before.row_index == request.row_index or request.row_index not in left:
                assert before.shared_with_next is not None
                before.shared_with_next = min(before.shared_with_next, request.shared_with_next)
    return staying
