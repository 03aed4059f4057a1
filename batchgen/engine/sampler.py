"""Sampler: logits to token ids. Draws depend on (seed, row key, sample, position) and nothing else.

One uniform number a token (`philox.py`) is looked up in the cumulative distribution of the tokens that are kept, so a
row's draw is the same in any batch; no full vocabulary is sorted unless a nearly flat one needs it for top_p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.philox import uniform
from batchgen.engine.request import Request

_FIRST_CANDIDATES = 64  # looked at for top_p; eight times as many where their mass is too small


class Sampler:
    """Chooses the next token of every row of a step.

    `unused_token_ids` exist in the logits and not in the tokenizer; they are never chosen.
    """

    def __init__(self, unused_token_ids: Tensor) -> None:
        self._unused = unused_token_ids

    def __call__(self, logits: Tensor, requests: Sequence[Request]) -> list[int | str]:
        """`logits` [rows, vocab] -> for each row a token id, or the error that ends it."""
        logits = logits.float()
        logits[:, self._unused] = -torch.inf
        best, tokens = logits.max(-1)
        sampled = [row for row, request in enumerate(requests) if not request.params.is_greedy]
        if sampled:
            rows = torch.tensor(sampled, device=logits.device)
            tokens[rows] = _draw(logits[rows] - best[rows, None], [requests[row] for row in sampled])
        outcomes: list[int | str] = tokens.tolist()
        for row in (~best.isfinite()).nonzero()[:, 0].tolist():
            outcomes[row] = (
                f"the model's logits are not finite after {requests[row].num_tokens} tokens; "
                "a wider model.dtype may help"
            )
        return outcomes


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
    positions = np.array([len(request.output_token_ids) for request in requests], np.uint64)
    samples = np.array([request.sample_index for request in requests], np.uint64)
    return uniform(keys, positions, samples)


def _threshold(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """[rows, 1]: the least probability that top_k and then top_p keep; tokens as likely as the last one stay too.

    top_p is the smallest set of the most likely tokens whose share of what top_k left reaches it (Holtzman et al.,
    arXiv 1904.09751).
    """
    vocab = probs.shape[-1]
    num_candidates = min(_FIRST_CANDIDATES, vocab)
    while True:
        values = probs.topk(num_candidates, -1).values
        kept = torch.where(torch.arange(num_candidates, device=probs.device) < top_k, values, 0)
        is_all = top_k <= num_candidates  # nothing beyond the candidates is kept
        mass = torch.where(is_all, kept.sum(-1, keepdim=True), probs.sum(-1, keepdim=True))
        inside = (kept.cumsum(-1) - kept < top_p * mass) & (kept > 0)
        inside[:, 0] = True  # the best stays, however small top_p is
        if num_candidates == vocab or bool((is_all | ~inside[:, -1:]).all()):
            return torch.where(inside, values, torch.inf).amin(-1, keepdim=True)
        num_candidates = min(num_candidates * 8, vocab)
