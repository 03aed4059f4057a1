"""Choose a token a row by inverse CDF, on the device: a draw looked up among the tokens that are kept.

The rule of the sampler on the CPU: the first token whose cumulative weight passes the draw's share of the total, in the
order of ids, sums in float64. The two agree as far as exponentials and sums round alike.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_VOCAB_TILE = 2048


@triton.jit
def _weights(
    row_ptr: tl.tensor, columns: tl.tensor, vocab: tl.tensor, best: tl.tensor, least: tl.tensor, sharpness: tl.tensor
) -> tl.tensor:
    """[tile] float64 exp((logit - best) / temperature) of the kept tokens, else 0."""
    logits = tl.load(row_ptr + columns, mask=columns < vocab, other=float("-inf"))
    kept = (columns < vocab) & (logits >= least)
    return tl.where(kept, tl.exp2((logits - best) * sharpness), 0.0).to(tl.float64)


@triton.jit
def sample_kernel(
    logits_ptr: tl.tensor,  # [rows, vocab] float32
    temperatures_ptr: tl.tensor,  # [rows] float32; 0: the best token
    least_ptr: tl.tensor,  # [rows] float32
    draws_ptr: tl.tensor,  # [rows] float64
    tokens_ptr: tl.tensor,  # [rows] int64
    vocab: tl.tensor,
    row_stride: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Grid (rows). Three passes over the row: its best, the total weight, the token."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    best = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        logits = tl.load(row_ptr + columns, mask=columns < vocab, other=float("-inf"))
        tile_best = tl.max(logits, 0)
        first = tl.min(tl.where(logits == tile_best, columns, 2147483647), 0)
        token = tl.where(tile_best > best, first, token)
        best = tl.maximum(best, tile_best)
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0.0:
        sharpness = 1.4426950408889634 / temperature
        least = tl.load(least_ptr + row)
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, vocab, TILE):
            columns = start + tl.arange(0, TILE)
            total += tl.sum(_weights(row_ptr, columns, vocab, best, least, sharpness), 0)
        target = tl.load(draws_ptr + row) * total
        before = tl.full([], 0.0, tl.float64)
        token = tl.full([], 0, tl.int32)
        last = tl.full([], 0, tl.int32)
        for start in range(0, vocab, TILE):
            columns = start + tl.arange(0, TILE)
            weights = _weights(row_ptr, columns, vocab, best, least, sharpness)
            passed = (before + tl.cumsum(weights, 0) <= target) & (columns < vocab)
            token += tl.sum(passed.to(tl.int32), 0)
            last = tl.maximum(last, tl.max(tl.where(weights > 0.0, columns, 0), 0))
            before += tl.sum(weights, 0)
        token = tl.minimum(token, last)  # a draw just below 1 may round past the last token
    tl.store(tokens_ptr + row, token.to(tl.int64))


def sample(logits: Tensor, temperatures: Tensor, least_logits: Tensor, draws: Tensor) -> Tensor:
    """[rows] int64 token ids. No device value is read by the host.

    logits [rows, vocab] float32, not changed; of each row: temperature float32 (0: the best, the first of equals), the
    least logit that is kept (float32, -inf: all), and a draw in [0, 1) float64 (`uniform.py`). The token of a row whose
    best logit is not finite means nothing.
    """
    rows, vocab = logits.shape
    assert logits.dtype == torch.float32, logits.dtype
    assert draws.dtype == torch.float64, draws.dtype
    assert logits.stride(1) == 1, logits.stride()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    sample_kernel[(rows,)](
        logits, temperatures, least_logits, draws, tokens, vocab, logits.stride(0), TILE=_VOCAB_TILE, num_warps=8
    )
    return tokens
