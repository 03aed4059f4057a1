"""Log-probabilities of tokens, in float32, of the logits as the model gives them (what vLLM calls raw_logprobs)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from batchgen.engine.outcome import TokenLogprobs


def raw_logprobs(logits: Tensor, unused_token_ids: Tensor) -> Tensor:
    """float32 [rows, vocab] logits -> their logprobs, a copy.

    Ids that the tokenizer lacks are part of the sum, as in the model, and then -inf: they are never shown.
    """
    logprobs = logits.log_softmax(-1)
    logprobs[:, unused_token_ids] = -torch.inf
    return logprobs


def logprobs_of(logprobs: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of `logprobs` [rows, vocab] those of its token and of its `num_top` best."""
    tokens = torch.tensor(token_ids, device=logprobs.device)[:, None]
    chosen = logprobs.gather(-1, tokens)
    ranks = (logprobs > chosen).sum(-1) + 1
    values, ids = logprobs.topk(min(max(num_top), logprobs.shape[-1]), -1)
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(zip(row_ids[:num], row_values[:num], strict=True)))
        for token_id, logprob, rank, row_ids, row_values, num in zip(
            token_ids, chosen[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), num_top, strict=True
        )
    ]
