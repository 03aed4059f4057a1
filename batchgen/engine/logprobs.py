"""Log-probabilities of tokens, in float32, of the logits as the model gives them (what vLLM calls raw_logprobs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from batchgen.engine.outcome import TokenLogprobs


class Measured(NamedTuple):
    """Of one token a row. It may still be on the device."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    ranks: Tensor  # [rows], from 1
    top_ids: Tensor  # [rows, most of num_top]
    top_logprobs: Tensor  # [rows, most of num_top]
    num_top: Sequence[int]  # [rows]

    def on_host(self, copy: Callable[[Tensor], Tensor]) -> Measured:
        """The same made of copies."""
        tokens, logprobs, ranks, top_ids, top_logprobs = map(copy, self[:5])
        return Measured(tokens, logprobs, ranks, top_ids, top_logprobs, self.num_top)

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


def measure(logprobs: Tensor, tokens: Tensor, num_top: Sequence[int]) -> Measured:
    """For each row of `logprobs` [rows, vocab] those of its token, `tokens` [rows], and of its `num_top` best."""
    chosen = logprobs.gather(-1, tokens[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, ids = logprobs.topk(min(max(num_top), logprobs.shape[-1]), -1)
    return Measured(tokens, chosen[:, 0], ranks, ids, values, num_top)
