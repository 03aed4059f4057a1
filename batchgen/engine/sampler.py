"""Sampler: logits to token ids. Draws depend on (seed, row key, sample, position) and nothing else.

One uniform number a token (`philox.py`) is looked up in the cumulative distribution of the tokens that are kept, so a
row's draw is the same in any batch; no full vocabulary is sorted unless a nearly flat one needs it for top_p.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.adjust import adjust, is_adjusted
from batchgen.engine.logprobs import logprobs_of, raw_logprobs
from batchgen.engine.outcome import Failed, Outcome, Sampled, TokenLogprobs
from batchgen.engine.philox import uniform
from batchgen.engine.request import Request

_FIRST_CANDIDATES = 64  # looked at for top_p; eight times as many for the rows where their mass is too small


class Sampler:
    """Chooses the next token of every row of a step.

    `unused_token_ids` exist in the logits and not in the tokenizer; they are never chosen.
    """

    def __init__(self, unused_token_ids: Tensor) -> None:
        self._unused = unused_token_ids

    def __call__(self, logits: Tensor, requests: Sequence[Request]) -> list[Outcome]:
        """`logits` [rows, vocab] -> for each row a token, or the error that ends it."""
        logits = logits.float()
        with_logprobs = _where(request.params.logprobs is not None for request in requests)
        logprobs = raw_logprobs(logits[with_logprobs], self._unused) if with_logprobs else None
        logits[:, self._unused] = -torch.inf
        tokens, errors = _choose(logits, requests)
        infos: dict[int, TokenLogprobs] = {}
        if logprobs is not None:
            num_top = [requests[row].params.logprobs or 0 for row in with_logprobs]
            found = logprobs_of(logprobs, [tokens[row] for row in with_logprobs], num_top)
            infos = dict(zip(with_logprobs, found, strict=True))
        return [
            Failed(errors[row]) if row in errors else Sampled(token_id, infos.get(row))
            for row, token_id in enumerate(tokens)
        ]

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
        """`logits` [tokens, vocab] of the places before these tokens of prompts -> what the model says of each."""
        return logprobs_of(raw_logprobs(logits.float(), self._unused), token_ids, num_top)


def _where(conditions: Iterable[bool]) -> list[int]:
    return [row for row, is_true in enumerate(conditions) if is_true]


def _choose(logits: Tensor, requests: Sequence[Request]) -> tuple[list[int], dict[int, str]]:
    """[rows] token ids, of no meaning in the rows that have an error; `logits` [rows, vocab] float32 may change.

    A row that asks for nothing costs one maximum.
    """
    best, tokens = logits.max(-1)
    is_finite = best.isfinite()
    adjusted = _where(map(is_adjusted, requests))
    if adjusted:
        changed = logits[adjusted]
        adjust(changed, [requests[row] for row in adjusted])
        logits[adjusted] = changed
        best[adjusted], tokens[adjusted] = changed.max(-1)
    sampled = _where(not request.params.is_greedy for request in requests)
    if sampled:
        tokens[sampled] = _draw(logits[sampled] - best[sampled, None], [requests[row] for row in sampled])
    # Where nothing is left to choose from, a draw is no token.
    tokens = torch.where(best.isfinite(), tokens, 0)
    errors = {row: _nothing_left(requests[row]) for row in (~best.isfinite()).nonzero()[:, 0].tolist()}
    for row in (~is_finite).nonzero()[:, 0].tolist():
        errors[row] = (
            f"the model's logits are not finite after {requests[row].num_tokens} tokens; a wider model.dtype may help"
        )
    return tokens.tolist(), errors


def _nothing_left(request: Request) -> str:
    if request.constraint is not None and request.constraint.error is not None:
        return request.constraint.error
    return "no token is left to choose: logit_bias, bad_words, min_tokens and structured together forbid every one"


def _draw(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """[rows] token ids; `logits` [rows, vocab] with the best at 0."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    params = [request.params for request in requests]
    probs = (logits / column([p.temperature for p in params])).softmax(-1)
    threshold = column([p.min_p for p in params]) * probs.amax(-1, keepdim=True)
    filtered = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1]
    if filtered:
        top_k = column([params[row].top_k or probs.shape[-1] for row in filtered])
        top_p = column([params[row].top_p for row in filtered])
        threshold[filtered] = torch.maximum(threshold[filtered], _threshold(probs[filtered], top_k, top_p))
    cumulative = torch.where(probs >= threshold, probs, 0).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    draws = torch.from_numpy(_uniform(requests)).to(logits.device)[:, None]
    # A draw just below 1 must not round up to the total, where no token is.
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _uniform(requests: Sequence[Request]) -> npt.NDArray[np.float64]:
    keys = np.array([request.draw_key for request in requests], np.uint64)
    positions = np.array([request.num_output_tokens for request in requests], np.uint64)
    samples = np.array([request.sample_index for request in requests], np.uint64)
    return uniform(keys, positions, samples)


def _threshold(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """[rows, 1]: the least probability that top_k and then top_p keep; tokens as likely as the last one stay too.

    top_p is the smallest set of the most likely tokens whose share of what top_k left reaches it (Holtzman et al.,
    arXiv 1904.09751).
    """
    vocab = probs.shape[-1]
    result = torch.zeros_like(top_p)
    num_candidates = min(_FIRST_CANDIDATES, vocab)
    open_rows = torch.arange(len(probs), device=probs.device)
    while len(open_rows):
        least, is_found = _among_best(probs[open_rows], top_k[open_rows], top_p[open_rows], num_candidates)
        result[open_rows] = least
        open_rows = open_rows[~is_found[:, 0]]
        num_candidates = min(num_candidates * 8, vocab)
    return result


def _among_best(probs: Tensor, top_k: Tensor, top_p: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """[rows, 1] each: the threshold by the `num_candidates` most likely tokens, and whether they were enough."""
    values = probs.topk(num_candidates, -1).values
    kept = torch.where(torch.arange(num_candidates, device=probs.device) < top_k, values, 0)
    is_all = top_k <= num_candidates  # nothing beyond the candidates is kept
    mass = torch.where(is_all, kept.sum(-1, keepdim=True), probs.sum(-1, keepdim=True))
    inside = (kept.cumsum(-1) - kept < top_p * mass) & (kept > 0)
    inside[:, 0] = True  # the best stays, however small top_p is
    is_found = is_all | ~inside[:, -1:] | (num_candidates == probs.shape[-1])
    return torch.where(inside, values, torch.inf).amin(-1, keepdim=True), is_found
