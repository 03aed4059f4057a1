"""Logits processors: logit bias, penalties on tokens that occurred, forbidden tokens, constraints.

They are applied in vLLM's order: bias, then the repetition, frequency and presence penalties, then forbidden tokens,
and last the tokens that a constraint such as a grammar does not allow. All but the last gather or scatter (row, token)
pairs, so the cost depends on the tokens of a row and not on the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.request import Request
from batchgen.models.transfer import to_device
from batchgen.sampling_params import SamplingParams

TokenArray = npt.NDArray[np.int64]


def is_adjusted(request: Request) -> bool:
    """Whether the next token of the request is sampled from adjusted logits."""
    params = request.params
    return bool(
        params.penalises
        or params.logit_bias
        or params.bad_words
        or request.num_answer_tokens < params.min_tokens
        or request.next_constraint is not None
    )


def adjust(logits: Tensor, requests: Sequence[Request]) -> None:
    """Adjust float32 `logits` [rows, vocab], one row per request, in place."""
    _add_bias(logits, [request.params for request in requests])
    if any(request.params.penalises for request in requests):
        _penalise(logits, requests)
    forbidden = _pairs([_forbidden(request, logits.shape[-1]) for request in requests], logits.device)
    logits[forbidden] = -torch.inf
    if any(request.next_constraint is not None for request in requests):
        logits.masked_fill_(_disallowed(requests, logits), -torch.inf)


class _Pairs(NamedTuple):
    """Indices of single logits; a pair of tensors that torch takes as an index."""

    rows: Tensor
    tokens: Tensor


def _pairs(token_ids: Sequence[TokenArray], device: torch.device) -> _Pairs:
    """Return the index pairs of these tokens; `token_ids[i]` are those of row i."""
    rows = np.repeat(np.arange(len(token_ids)), [len(ids) for ids in token_ids])
    tokens = np.concatenate([np.empty(0, np.int64), *token_ids])
    return _Pairs(*to_device([rows, tokens], device))


def _column(values: Iterable[float], device: torch.device) -> Tensor:
    """Return the values as a float32 tensor."""
    (column,) = to_device([np.fromiter(values, np.float64)], device)
    return column.float()


def _array(values: Iterable[int]) -> TokenArray:
    return np.fromiter(values, np.int64)


def _add_bias(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    pairs = _pairs([_array(token for token, _ in each.logit_bias) for each in params], logits.device)
    logits[pairs] += _column((value for each in params for _, value in each.logit_bias), logits.device)


def _penalise(logits: Tensor, requests: Sequence[Request]) -> None:
    """Apply the penalties of Keskar et al., arXiv 1909.05858 (repetition), and OpenAI's API (frequency, presence).

    A pair that occurs twice is read before it is written and gets the same value twice, so pairs need not be unique.
    """
    params = [request.params for request in requests]
    repeated = [_array(_repetition_tokens(request)) for request in requests]
    outputs = [_array(request.output_token_ids if request.params.penalises else ()) for request in requests]
    pairs = _pairs(repeated, logits.device)
    factors, values = _column((each.repetition_penalty for each in params), logits.device)[pairs.rows], logits[pairs]
    logits[pairs] = torch.where(values > 0, values / factors, values * factors)
    pairs = _pairs(outputs, logits.device)
    logits.index_put_(
        pairs, -_column((each.frequency_penalty for each in params), logits.device)[pairs.rows], accumulate=True
    )
    logits[pairs] = logits[pairs] - _column((each.presence_penalty for each in params), logits.device)[pairs.rows]


def _repetition_tokens(request: Request) -> list[int]:
    """Return the tokens that the repetition penalty applies to: those of prompt and completion."""
    return request.token_ids(0, request.num_tokens) if request.params.repetition_penalty != 1 else []


def _forbidden(request: Request, vocab_size: int) -> TokenArray:
    """Return the tokens that must not come next: the ends of bad words and, below min_tokens, the end tokens."""
    params, output = request.params, request.output_token_ids
    ids = [word[-1] for word in params.bad_words if len(word) == 1 or tuple(output[1 - len(word) :]) == word[:-1]]
    if request.num_answer_tokens < params.min_tokens:
        ids += [token for token in request.next_end_token_ids if token < vocab_size]
    return _array(ids)


def _disallowed(requests: Sequence[Request], logits: Tensor) -> Tensor:
    """Return a bool tensor like `logits`, true for disallowed tokens; all false in rows without a constraint."""
    bits = np.full((len(requests), -(-logits.shape[-1] // 8)), 0xFF, np.uint8)
    for row, request in enumerate(requests):
        if (constraint := request.next_constraint) is not None:
            bits[row] = constraint.allowed()[: bits.shape[1]]
    mask = np.unpackbits(~bits, axis=1, count=logits.shape[-1], bitorder="little")
    return torch.from_numpy(mask).to(logits.device).view(torch.bool)
