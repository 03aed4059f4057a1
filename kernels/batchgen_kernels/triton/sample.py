"""Choose a token a row by inverse CDF, on the device: one uniform number looked up among the tokens that are kept.

The rule is that of the sampler on the CPU: Philox 4x32-10 (Salmon et al., SC 2011) with the row's 64-bit key and the
counter (position, sample, 0, 0), 53 bits as a float64 in [0, 1), and the first token whose cumulative weight passes
that share of the total. The integers agree bit for bit; weights agree as far as exponentials round alike.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_VOCAB_TILE = 2048


@triton.jit
def _uniform(key: tl.tensor, position: tl.tensor, sample: tl.tensor) -> tl.tensor:
    """float64 in [0, 1); key is 64 bits wide, position and sample 32."""
    zero = position * 0
    high, low, _2, _3 = tl.philox(key, position, sample, zero, zero)
    bits = (high.to(tl.uint64) << 21) ^ (low.to(tl.uint64) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53


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
    keys_ptr: tl.tensor,  # [rows] int64
    positions_ptr: tl.tensor,  # [rows] int32
    samples_ptr: tl.tensor,  # [rows] int32
    tokens_ptr: tl.tensor,  # [rows] int64
    draws_ptr: tl.tensor,  # [rows] float64
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
    draw = _uniform(tl.load(keys_ptr + row), tl.load(positions_ptr + row), tl.load(samples_ptr + row))
    tl.store(draws_ptr + row, draw)
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0.0:
        sharpness = 1.4426950408889634 / temperature
        least = tl.load(least_ptr + row)
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, vocab, TILE):
            columns = start + tl.arange(0, TILE)
            total += tl.sum(_weights(row_ptr, columns, vocab, best, least, sharpness), 0)
        target = draw * total
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


def sample(
    logits: Tensor, temperatures: Tensor, least_logits: Tensor, keys: Tensor, positions: Tensor, samples: Tensor
) -> tuple[Tensor, Tensor]:
    """[rows] int64 token ids, and [rows] float64 the draws they were chosen by. No device value is read by the host.

    logits [rows, vocab] float32, not changed; of each row: temperature float32 (0: the best, the first of equals),
    the least logit that is kept (float32, -inf: all), the draw key's 64 bits as int64, position and sample int32.
    The token of a row whose best logit is not finite means nothing.
    """
    rows, vocab = logits.shape
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.stride(1) == 1, logits.stride()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    draws = torch.empty(rows, dtype=torch.float64, device=logits.device)
    sample_kernel[(rows,)](
        logits, temperatures, least_logits, keys, positions, samples, tokens, draws, vocab, logits.stride(0),
        TILE=_VOCAB_TILE, num_warps=8,
    )  # fmt: skip
    return tokens, draws
