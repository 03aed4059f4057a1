"""Sampler: logits to outcomes. Changes the logits of rows that ask for it, and reads what was chosen.

How a token is chosen is the backend's (`batchgen_kernels/contract.py`). Draws depend on (seed, row key, sample,
position) and nothing else. Log-probabilities are in float32, of the logits as the model gives them (what vLLM calls
raw_logprobs).
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
    """What a step chose. It may still be on the device, which may not have computed it yet."""

    requests: Sequence[Request]  # one a row
    sampled: SampledTokens
    adjusted: frozenset[int]  # rows that were not chosen from the model's own logits
    with_logprobs: Sequence[int]  # rows of `measured`
    measured: LogprobsTensors | None

    def outcomes(self) -> list[Outcome]:
        """For each row its token, or the error that ends it. Waits for the device."""
        infos: dict[int, TokenLogprobs] = {}
        if self.measured is not None:
            infos = dict(zip(self.with_logprobs, self.measured.read(), strict=True))
        tokens, best = self.sampled.tokens.tolist(), self.sampled.best
        failed = set() if bool(best.isfinite().all()) else set(_where((~best.isfinite()).tolist()))
        return [
            self._failed(row) if row in failed else SampledToken(token_id, infos.get(row))
            for row, token_id in enumerate(tokens)
        ]

    def on_host(self, copy: Callable[[Tensor], Tensor]) -> SamplerOutput:
        """The same made of copies."""
        measured = None if self.measured is None else self.measured.on_host(copy)
        return replace(self, sampled=SampledTokens(*map(copy, self.sampled)), measured=measured)

    def _failed(self, row: int) -> Failed:
        request = self.requests[row]
        if row in self.adjusted and float(self.sampled.best[row]) == -torch.inf:
            return Failed(_nothing_left(request))
        num_tokens = request.num_prompt_tokens + len(request.output_token_ids)
        return Failed(f"the model's logits are not finite after {num_tokens} tokens; a wider model.dtype may help")


class Sampler:
    """Chooses the next token of every row of a step.

    `unused_token_ids` exist in the logits and not in the tokenizer; they are never chosen.
    """

    def __init__(self, unused_token_ids: Tensor, backend: SamplingBackend) -> None:
        self._unused = unused_token_ids
        self._backend = backend

    def sample(self, logits: Tensor, requests: Sequence[Request], rows: SamplingRows | None) -> SamplerOutput:
        """`logits` [rows, vocab], which may change. Reads nothing back from the device.

        Rows that ask for nothing cost one maximum.
        """
        with_logprobs = _where(request.params.logprobs is not None for request in requests)
        logprobs = None
        if with_logprobs:
            (measured_rows,) = to_device([np.array(with_logprobs)], logits.device)
            logprobs = raw_logprobs(logits[measured_rows].float(), self._unused)
        if len(self._unused):
            logits[:, self._unused] = -torch.inf
        adjusted = _where(map(is_adjusted, requests))
        if adjusted:
            (adjusted_rows,) = to_device([np.array(adjusted)], logits.device)
            logits = logits.float()
            changed = logits[adjusted_rows]
            adjust(changed, [requests[row] for row in adjusted])
            logits[adjusted_rows] = changed
        sampled = self._backend.sample(logits, rows)
        measured = None
        if logprobs is not None:
            num_top = [requests[row].params.logprobs or 0 for row in with_logprobs]
            measured = gather_logprobs(logprobs, sampled.tokens[measured_rows], num_top)
        return SamplerOutput(requests, sampled, frozenset(adjusted), with_logprobs, measured)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> LogprobsTensors:
        """`logits` [tokens, vocab] of the places before these tokens of prompts -> what the model says of each."""
        (tokens,) = to_device([np.array(token_ids)], logits.device)
        return gather_logprobs(raw_logprobs(logits.float(), self._unused), tokens, num_top)


def _where(conditions: Iterable[bool]) -> list[int]:
    return [row for row, is_true in enumerate(conditions) if is_true]


def _nothing_left(request: Request) -> str:
    if request.constraint is not None and request.constraint.error is not None:
        return request.constraint.error
    return "no token is left to choose: logit_bias, bad_words, min_tokens and structured together forbid every one"


class LogprobsTensors(NamedTuple):
    """Of one token a row. It may still be on the device."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    ranks: Tensor  # [rows], from 1
    top_ids: Tensor  # [rows, most of num_top]
    top_logprobs: Tensor  # [rows, most of num_top]
    num_top: Sequence[int]  # [rows]

    def on_host(self, copy: Callable[[Tensor], Tensor]) -> LogprobsTensors:
        """The same made of copies."""
        tokens, logprobs, ranks, top_ids, top_logprobs = map(copy, self[:5])
        return LogprobsTensors(tokens, logprobs, ranks, top_ids, top_logprobs, self.num_top)

    def read(self) -> list[TokenLogprobs]:
        """Waits for the device."""
        *columns, num_top = self
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(zip(ids[:num], values[:num], strict=True)))
            for token_id, logprob, rank, ids, values, num in zip(
                *(column.tolist() for column in columns), num_top, strict=True
            )
        ]


def raw_logprobs(logits: Tensor, unused_token_ids: Tensor) -> Tensor:
    """float32 [rows, vocab] logits -> their logprobs, a copy.

    Ids that the tokenizer lacks are part of the sum, as in the model, and then -inf: they are never shown.
    """
    logprobs = logits.log_softmax(-1)
    logprobs[:, unused_token_ids] = -torch.inf
    return logprobs


def gather_logprobs(logprobs: Tensor, tokens: Tensor, num_top: Sequence[int]) -> LogprobsTensors:
    """For each row of `logprobs` [rows, vocab] those of its token, `tokens` [rows], and of its `num_top` best."""
    sampled = logprobs.gather(-1, tokens[:, None])
    ranks = (logprobs > sampled).sum(-1) + 1
    values, ids = logprobs.topk(min(max(num_top), logprobs.shape[-1]), -1)
    return LogprobsTensors(tokens, sampled[:, 0], ranks, ids, values, num_top)
