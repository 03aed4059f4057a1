"""Sampling on the device: filters, random draws and tokens by inverse CDF, one program a row, in a few launches.

`contract.py` defines the sampled token. Filters need no sort: the smallest logit that top_k or top_p keeps is found by
bisection over the bits of the logits, ordered like integers. Both ends move to logits that occur, so a search usually
takes a dozen passes over a row, and at most 32.

The draws are Philox 4x32-10, equal to the host's (`philox.py`) bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchgen_kernels.contract import SampledTokens, SamplingRows

_VOCAB_TILE = 2048


@triton.jit
def _sort_key(bits: tl.tensor) -> tl.tensor:
    """Return the int32 bits of a float32 as an integer key that is ordered like the float; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _load_tile(row_ptr: tl.tensor, columns: tl.tensor, vocab: tl.tensor) -> tl.tensor:
    """Load logits [tile] as float32, -inf behind the end of the row, -0 as 0."""
    logits = tl.load(row_ptr + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    return tl.where(logits == 0.0, 0.0, logits)


@triton.jit
def _weight(logits: tl.tensor, best: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Return exp((logit - best) / temperature) in float32; `scale` is log2(e) / temperature."""
    return tl.exp2((logits - best) * scale)


@triton.jit
def _measure(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    middle: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    best: tl.tensor,
    scale: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the number or weight (float64) of keys from `middle` on, the smallest of them and the largest below."""
    total = tl.full([], 0.0, tl.float64)
    above = high
    below = low
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        logits = _load_tile(row_ptr, columns, vocab)
        keys = _sort_key(logits.to(tl.int32, bitcast=True))
        is_above = (keys >= middle) & (columns < vocab)
        if BY_WEIGHT:
            total += tl.sum(tl.where(is_above, _weight(logits, best, scale), 0.0).to(tl.float64), 0)
        else:
            total += tl.sum(is_above.to(tl.float64), 0)
        above = tl.minimum(above, tl.min(tl.where(is_above, keys, high), 0))
        below = tl.maximum(below, tl.max(tl.where(keys < middle, keys, low), 0))
    return total, above, below


@triton.jit
def _search(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    target: tl.tensor,
    best: tl.tensor,
    scale: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Return the largest key in `[low, high]`, both of which occur, from which on the tokens of the row count or weigh
    `target`; `low` if there is none."""
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up
        total, above, below = _measure(row_ptr, vocab, middle, low, high, best, scale, BY_WEIGHT, TILE)
        low = tl.where(total >= target, above, low)
        high = tl.where(total >= target, high, below)
    return low


# Columns of a step may have any alignment; the kernel is not compiled again for it.
_COLUMNS = ["temperatures_ptr", "top_p_ptr", "min_p_ptr", "top_k_ptr"]


@triton.jit(do_not_specialize_on_alignment=_COLUMNS)
def sample_kernel(
    logits_ptr: tl.tensor,  # [rows, vocab]
    temperatures_ptr: tl.tensor,  # [rows] float32; 0: the best token
    top_p_ptr: tl.tensor,  # [rows] float32
    min_p_ptr: tl.tensor,  # [rows] float32
    top_k_ptr: tl.tensor,  # [rows] int64; 0 keeps all
    bits_ptr: tl.tensor,  # [rows] int64: 53 random bits
    tokens_ptr: tl.tensor,  # [rows] int64
    best_ptr: tl.tensor,  # [rows] float32
    vocab: tl.tensor,
    row_stride: tl.tensor,
    IS_FILTERED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Sample the token of one row on the grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    best = tl.full([], float("-inf"), tl.float32)
    worst = tl.full([], float("inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    has_nan = tl.full([], 0, tl.int32)
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        logits = _load_tile(row_ptr, columns, vocab)
        has_nan = tl.maximum(has_nan, tl.max((logits != logits).to(tl.int32), 0))
        tile_best = tl.max(logits, 0)
        first = tl.min(tl.where(logits == tile_best, columns, 2147483647), 0)
        token = tl.where(tile_best > best, first, token)
        best = tl.maximum(best, tile_best)
        worst = tl.minimum(worst, tl.min(tl.where(columns < vocab, logits, float("inf")), 0))
    best = tl.where(has_nan > 0, float("nan"), best)
    tl.store(best_ptr + row, best)
    temperature = tl.load(temperatures_ptr + row)
    is_finite = tl.abs(best) < float("inf")
    if (temperature == 0.0) | (is_finite == 0):
        tl.store(tokens_ptr + row, tl.where(is_finite, token, 0).to(tl.int64))
        return
    scale = 1.4426950408889634 / temperature
    least = _sort_key(worst.to(tl.int32, bitcast=True))
    if IS_FILTERED:
        best_key = _sort_key(best.to(tl.int32, bitcast=True))
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocab):
            least = _search(row_ptr, vocab, least, best_key, top_k.to(tl.float64), best, scale, False, TILE)
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            # The weight that top_k keeps: of all larger logits, and of as many of the smallest as top_k still admits.
            count, _, _ = _measure(row_ptr, vocab, least + 1, least, best_key, best, scale, False, TILE)
            mass, _, _ = _measure(row_ptr, vocab, least + 1, least, best_key, best, scale, True, TILE)
            num_last = tl.where(top_k > 0, tl.minimum(top_k, vocab), vocab).to(tl.float64) - count
            last = _weight(_sort_key(least).to(tl.float32, bitcast=True), best, scale)
            mass += num_last * last.to(tl.float64)
            least = _search(row_ptr, vocab, least, best_key, top_p.to(tl.float64) * mass, best, scale, True, TILE)
    # Tokens whose weight equals that of the last one are kept too.
    least_weight = _weight(_sort_key(least).to(tl.float32, bitcast=True), best, scale)
    least_weight = tl.maximum(least_weight, tl.load(min_p_ptr + row))
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        total += tl.sum(_kept_weights(row_ptr, columns, vocab, best, scale, least_weight), 0)
    target = tl.load(bits_ptr + row).to(tl.float64) * 1.1102230246251565e-16 * total
    before = tl.full([], 0.0, tl.float64)
    token = tl.full([], 0, tl.int32)
    last_token = tl.full([], 0, tl.int32)
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        weights = _kept_weights(row_ptr, columns, vocab, best, scale, least_weight)
        passed = (before + tl.cumsum(weights, 0) <= target) & (columns < vocab)
        token += tl.sum(passed.to(tl.int32), 0)
        last_token = tl.maximum(last_token, tl.max(tl.where(weights > 0.0, columns, 0), 0))
        before += tl.sum(weights, 0)
    # A draw just below 1 may round up past the last kept token.
    tl.store(tokens_ptr + row, tl.minimum(token, last_token).to(tl.int64))


@triton.jit
def _kept_weights(
    row_ptr: tl.tensor,
    columns: tl.tensor,
    vocab: tl.tensor,
    best: tl.tensor,
    scale: tl.tensor,
    least_weight: tl.tensor,
) -> tl.tensor:
    """Return the weights [tile] in float64, 0 for tokens that are not kept."""
    weights = _weight(_load_tile(row_ptr, columns, vocab), best, scale)
    return tl.where((columns < vocab) & (weights >= least_weight), weights, 0.0).to(tl.float64)


def sample(logits: Tensor, rows: SamplingRows) -> SampledTokens:
    """See `contract.SamplingBackend`, for rows of which at least one is not greedy."""
    count, vocab = logits.shape
    assert logits.stride(1) == 1, logits.stride()
    bits = random_bits(*(column.contiguous() for column in (rows.keys, rows.positions, rows.samples)))
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    best = torch.empty(count, dtype=torch.float32, device=logits.device)
    sample_kernel[(count,)](
        logits, rows.temperatures, rows.top_p, rows.min_p, rows.top_k, bits, tokens, best, vocab, logits.stride(0),
        IS_FILTERED=rows.is_filtered, TILE=_VOCAB_TILE, num_warps=8,
    )  # fmt: skip
    return SampledTokens(tokens, best)


_TILE = 128


# Compiled once for any number of draws and any alignment of their columns.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["keys_ptr", "positions_ptr", "samples_ptr"])
def uniform_kernel(
    keys_ptr: tl.tensor,  # [N] int64, the bits of an unsigned key
    positions_ptr: tl.tensor,  # [N] int64
    samples_ptr: tl.tensor,  # [N] int64
    bits_ptr: tl.tensor,  # [N] int64: 53 random bits
    count: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Draw TILE numbers on the grid (N / TILE). 32-bit words are kept in 64 bits for the high halves of products."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = index < count
    key = tl.load(keys_ptr + index, mask=mask, other=0).to(tl.uint64)
    c0 = tl.load(positions_ptr + index, mask=mask, other=0).to(tl.uint64) & 0xFFFFFFFF
    c1 = tl.load(samples_ptr + index, mask=mask, other=0).to(tl.uint64) & 0xFFFFFFFF
    c2 = tl.zeros([TILE], tl.uint64)
    c3 = tl.zeros([TILE], tl.uint64)
    k0 = key & 0xFFFFFFFF
    k1 = key >> 32
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & 0xFFFFFFFF
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & 0xFFFFFFFF
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    tl.store(bits_ptr + index, ((c0 << 21) ^ (c1 >> 11)).to(tl.int64), mask=mask)


def random_bits(keys: Tensor, positions: Tensor, samples: Tensor) -> Tensor:
    """Return 53 random bits [N] int64 for every (key, token position, sample index), each [N] int64 and contiguous."""
    bits = torch.empty_like(keys)
    uniform_kernel[(triton.cdiv(len(keys), _TILE),)](keys, positions, samples, bits, len(keys), TILE=_TILE, num_warps=4)
    return bits


def uniform(keys: Tensor, positions: Tensor, samples: Tensor) -> Tensor:
    """Return a draw in [0, 1) [N] float64 for each, equal to the host's."""
    return random_bits(keys, positions, samples).double() * 2.0**-53
