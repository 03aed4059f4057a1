"""Sampler: turns logits into outcomes. Adjusts the logits of rows that ask for it; the backend samples the tokens.

`batchgen_kernels/contract.py` defines how a token is sampled. Random numbers depend only on (seed, row key, sample,
position). Log-probabilities are in float32, of the logits as the model gives them (vLLM calls them raw_logprobs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchgen.engine.logits import adjust, is_adjusted
from batchgen.engine.request import Failed, Outcome, Request, SampledToken, TokenLogprobs
from batchgen.models.backends import SampledTokens, SamplingBackend, SamplingRows
from batchgen.models.transfer import to_device


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The tokens sampled in a step, one row per request. They may be on the device, and not computed yet."""

    requests: Sequence[Request]  # [rows]
    sampled: SampledTokens
    adjusted_rows: frozenset[int]  # rows that were not sampled from the raw logits of the model
    logprobs_rows: Sequence[int]  # rows with log-probabilities: entry i of `logprobs` is of row logprobs_rows[i]
    logprobs: LogprobsTensors | None  # None without such rows

    def outcomes(self) -> list[Outcome]:
        """Return for each row its token, or the error that ends it. Waits for the device."""
        row_to_logprobs: dict[int, TokenLogprobs] = {}
        if self.logprobs is not None:
            row_to_logprobs = dict(zip(self.logprobs_rows, self.logprobs.read(), strict=True))
        tokens, best = self.sampled.tokens.tolist(), self.sampled.best
        failed = set() if bool(best.isfinite().all()) else set(_rows_where((~best.isfinite()).tolist()))
        return [
            self._failure(row) if row in failed else SampledToken(token_id, row_to_logprobs.get(row))
            for row, token_id in enumerate(tokens)
        ]

    def on_host(self, copy: Callable[[Tensor], Tensor]) -> SamplerOutput:
        """Return the same output with every tensor replaced by its `copy`."""
        logprobs = None if self.logprobs is None else self.logprobs.on_host(copy)
        return replace(self, sampled=SampledTokens(*map(copy, self.sampled)), logprobs=logprobs)

    def _failure(self, row: int) -> Failed:
        request = self.requests[row]
        if row in self.adjusted_rows and float(self.sampled.best[row]) == -torch.inf:
            return Failed(_no_token_error(request))
        num_tokens = request.num_prompt_tokens + len(request.output_token_ids)
        return Failed(f"the model's logits are not finite after {num_tokens} tokens; a wider model.dtype may help")


class Sampler:
    """Samples the next token of every row of a step.

    `unused_token_ids` are in the model's vocabulary but not in the tokenizer's; they are never sampled.
    """

    def __init__(self, unused_token_ids: Tensor, backend: SamplingBackend) -> None:
        self._unused = unused_token_ids
        self._backend = backend

    def sample(self, logits: Tensor, requests: Sequence[Request], rows: SamplingRows | None) -> SamplerOutput:
        """Sample one token from each row of `logits` [rows, vocab], which may be changed in place.

        Reads nothing back from the device. A greedy row that asks for nothing else costs one argmax.
        """
        logprobs_rows = _rows_where(request.params.logprobs is not None for request in requests)
        vocab_logprobs = None  # [logprobs_rows, vocab]
        if logprobs_rows:
            (row_indices,) = to_device([np.array(logprobs_rows)], logits.device)
            vocab_logprobs = raw_logprobs(logits[row_indices].float(), self._unused)
        if len(self._unused):
            logits[:, self._unused] = -torch.inf
        adjusted_rows = _rows_where(map(is_adjusted, requests))
        if adjusted_rows:
            logits = _adjust_rows(logits.float(), requests, adjusted_rows)
        sampled = self._backend.sample(logits, rows)
        logprobs = None
        if vocab_logprobs is not None:
            num_top = [requests[row].params.logprobs or 0 for row in logprobs_rows]
            logprobs = gather_logprobs(vocab_logprobs, sampled.tokens[row_indices], num_top)
        return SamplerOutput(requests, sampled, frozenset(adjusted_rows), logprobs_rows, logprobs)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> LogprobsTensors:
        """Return the log-probabilities of prompt tokens; row i of `logits` [tokens, vocab] predicts `token_ids[i]`."""
        (tokens,) = to_device([np.array(token_ids)], logits.device)
        return gather_logprobs(raw_logprobs(logits.float(), self._unused), tokens, num_top)


def _adjust_rows(logits: Tensor, requests: Sequence[Request], rows: Sequence[int]) -> Tensor:
    """Adjust these rows of float32 `logits` in place; return `logits`."""
    (row_indices,) = to_device([np.array(rows)], logits.device)
    adjusted = logits[row_indices]
    adjust(adjusted, [requests[row] for row in rows])
    logits[row_indices] = adjusted
    return logits


def _rows_where(conditions: Iterable[bool]) -> list[int]:
    return [row for row, is_true in enumerate(conditions) if is_true]


def _no_token_error(request: Request) -> str:
    constraint = request.next_constraint
    if constraint is not None and constraint.error is not None:
        return constraint.error
    return "no token can be sampled: logit_bias, bad_words, min_tokens and structured together forbid every one"


class LogprobsTensors(NamedTuple):
    """The log-probabilities of one token per row. They may be on the device, and not computed yet."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    ranks: Tensor  # [rows], from 1
    top_ids: Tensor  # [rows, max(num_top)], the most likely tokens
    top_logprobs: Tensor  # [rows, max(num_top)]
    num_top: Sequence[int]  # [rows]

    def on_host(self, copy: Callable[[Tensor], Tensor]) -> LogprobsTensors:
        """Return the same log-probabilities with every tensor replaced by its `copy`."""
        tokens, logprobs, ranks, top_ids, top_logprobs = map(copy, self[:5])
        return LogprobsTensors(tokens, logprobs, ranks, top_ids, top_logprobs, self.num_top)

    def read(self) -> list[TokenLogprobs]:
        """Return one entry per row. Waits for the device."""
        *columns, num_top = self
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(zip(ids[:num], values[:num], strict=True)))
            for token_id, logprob, rank, ids, values, num in zip(
                *(column.tolist() for column in columns), num_top, strict=True
            )
        ]


def raw_logprobs(logits: Tensor, unused_token_ids: Tensor) -> Tensor:
    """Return the log-probabilities of float32 `logits` [rows, vocab], as a copy.

    Ids that the tokenizer lacks count in the normalisation, as in the model, and are then set to -inf: they are never
    among the top tokens.
    """
    logprobs = logits.log_softmax(-1)
    logprobs[:, unused_token_ids] = -torch.inf
    return logprobs


def gather_logprobs(logprobs: Tensor, tokens: Tensor, num_top: Sequence[int]) -> LogprobsTensors:
    """Return, for each row of `logprobs` [rows, vocab], those of its token in `tokens` [rows] and of its top tokens."""
    token_logprobs = logprobs.gather(-1, tokens[:, None])
    ranks = (logprobs > token_logprobs).sum(-1) + 1
    values, ids = logprobs.topk(min(max(num_top), logprobs.shape[-1]), -1)
    return LogprobsTensors(tokens, token_logprobs[:, 0], ranks, ids, values, num_top)
