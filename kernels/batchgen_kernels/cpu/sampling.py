"""Sampling on the CPU, compiled by numba at first use: rows in parallel, each in a few passes over its vocabulary.

A row's weights are computed once, in float32, and stay in the CPU cache; nothing is sorted. The smallest weight that
top_k and top_p keep is found by bisection on the bits of float32, which order positive numbers like integers: each pass
counts or sums the candidates that are at least as large. Sums are in float64, in an order that depends on the row only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from batchgen_kernels.contract import SampledTokens, SamplingRows
from batchgen_kernels.cpu.compile import as_bits, compiled
from batchgen_kernels.cpu.vector import exponential, float_bits, widen
from batchgen_kernels.philox import uniform

_BLOCK = 256  # weights in a block: the unit of partial sums and maxima
_ONE = 0x3F800000  # the bits of 1.0, the weight of the best token
_ALL_BUT_SIGN = 0x7FFFFFFF


def sample(logits: Tensor, rows: SamplingRows | None, num_threads: int) -> SampledTokens:
    """See `contract.SamplingBackend`."""
    bits = as_bits(logits)
    tokens, best = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.float32)
    _sample_greedy(bits, tokens.numpy(), best.numpy())
    if rows is not None:
        draws = uniform(*(column.numpy().view(np.uint64) for column in (rows.keys, rows.positions, rows.samples)))
        columns = (column.numpy() for column in (rows.temperatures, rows.top_p, rows.min_p, rows.top_k))
        _sample_rows(bits, best.numpy(), *columns, draws, num_threads, tokens.numpy())
    return SampledTokens(tokens, best)


@compiled(parallel=True)
def _sample_greedy(logits: Any, tokens: Any, best: Any) -> None:
    """Write the best token of logits [rows, vocab] as bits, and its logit; token 0 if that is not finite."""
    for row in prange(len(logits)):
        best[row] = _maximum(logits[row])
        tokens[row] = _first_index(logits[row], best[row]) if np.isfinite(best[row]) else 0


@compiled()
def _maximum(logits: Any) -> Any:
    """Return the maximum, NaN if any is NaN. Compares integers, since LLVM does not vectorise a maximum of floats."""
    largest, smallest = np.int32(-_ALL_BUT_SIGN), np.int32(_ALL_BUT_SIGN)
    for token in range(len(logits)):
        bits = float_bits(widen(logits[token]))
        ordered = bits ^ ((bits >> np.int32(31)) & np.int32(_ALL_BUT_SIGN))
        largest, smallest = max(largest, ordered), min(smallest, ordered)
    infinity = float_bits(np.float32(np.inf))
    if largest > infinity or smallest < -infinity - np.int32(1):
        return np.float32(np.nan)
    return widen(np.uint32(largest ^ ((largest >> np.int32(31)) & np.int32(_ALL_BUT_SIGN))))


@compiled()
def _first_index(logits: Any, wanted: Any) -> Any:
    """Return the index of the first logit that equals `wanted`."""
    for start in range(0, len(logits), _BLOCK):
        stop = min(start + _BLOCK, len(logits))
        found = 0
        for token in range(start, stop):
            found |= widen(logits[token]) == wanted
        if found:
            for token in range(start, stop):
                if widen(logits[token]) == wanted:
                    return token
    return 0


@compiled(parallel=True)
def _sample_rows(
    logits: Any,
    best: Any,
    temperatures: Any,
    top_p: Any,
    min_p: Any,
    top_k: Any,
    draws: Any,
    num_threads: Any,
    tokens: Any,
) -> None:
    """Write tokens [rows] of all rows with a temperature; the others are not changed."""
    num_rows, vocab = logits.shape
    for thread in prange(num_threads):
        weights = np.empty(vocab, np.float32)
        candidates = np.empty(vocab, np.float32)
        sums = np.empty(-(-vocab // _BLOCK), np.float64)
        for row in range(thread * num_rows // num_threads, (thread + 1) * num_rows // num_threads):
            if temperatures[row] > 0 and np.isfinite(best[row]):
                _compute_weights(logits[row], best[row], temperatures[row], weights)
                threshold = _min_kept_weight(weights, top_k[row], top_p[row], candidates)
                tokens[row] = _sample_token(weights, max(threshold, min_p[row]), draws[row], sums)


@compiled()
def _compute_weights(logits: Any, best: Any, temperature: Any, weights: Any) -> None:
    for token in range(len(logits)):
        weights[token] = exponential((widen(logits[token]) - best) / temperature)


@compiled()
def _sample_token(weights: Any, threshold: Any, draw: Any, sums: Any) -> Any:
    """Return the first token whose cumulative weight exceeds the draw's share of all kept weights."""
    total = 0.0
    for block in range(len(sums)):
        sums[block] = _sum_from(weights[block * _BLOCK : (block + 1) * _BLOCK], threshold)
        total += sums[block]
    # A draw just below 1 must not round up to the total, which no cumulative weight exceeds.
    target = min(draw * total, np.nextafter(total, 0.0))
    before, block = 0.0, 0
    while before + sums[block] <= target:
        before += sums[block]
        block += 1
    token = 0
    for index in range(block * _BLOCK, min((block + 1) * _BLOCK, len(weights))):
        if weights[index] >= threshold and weights[index] > 0:
            token = index
            before += weights[index]
            if before > target:
                break
    return token  # the last kept one of the block if its sum in this order is smaller


@compiled()
def _min_kept_weight(weights: Any, top_k: Any, top_p: Any, candidates: Any) -> Any:
    """Return the smallest weight that top_k and then top_p keep."""
    threshold, mass = np.float32(0), 0.0
    if 0 < top_k < len(weights):
        threshold = _kth_largest(weights, top_k, candidates)
        greater = np.nextafter(threshold, np.float32(2))
        mass = _sum_from(weights, greater) + (top_k - _count_from(weights, greater)) * threshold
    elif top_p < 1:
        mass = _sum_from(weights, threshold)
    if top_p < 1:
        target = top_p * mass
        # All weights below this bound together are less than what top_p may drop.
        threshold = max(threshold, np.float32((mass - target) / len(weights)))
        num_candidates = _collect_from(weights, threshold, candidates)
        threshold = _bisect(candidates[:num_candidates], threshold, target, False)
    return threshold


@compiled()
def _kth_largest(weights: Any, k: Any, candidates: Any) -> Any:
    num_blocks = len(weights) // _BLOCK
    for block in range(num_blocks):
        candidates[block] = _max_weight(weights[block * _BLOCK : (block + 1) * _BLOCK])
    bound = np.float32(0)
    if k <= num_blocks:  # the k-th largest of the blocks' maxima is at most that of all weights
        bound = _bisect(candidates[:num_blocks], bound, k, True)
    return _bisect(candidates[: _collect_from(weights, bound, candidates)], bound, k, True)


@compiled()
def _collect_from(weights: Any, bound: Any, candidates: Any) -> Any:
    """Write the weights of at least `bound` to the beginning of `candidates`; return their number."""
    count = 0
    for start in range(0, len(weights), _BLOCK):
        block = weights[start : start + _BLOCK]
        if _max_weight(block) >= bound:
            for index in range(len(block)):
                candidates[count] = block[index]
                count += block[index] >= bound  # no branch, which would be mispredicted too often
    return count


@compiled()
def _bisect(weights: Any, bound: Any, target: Any, is_count: Any) -> Any:
    """Return the largest number, at least `bound`, such that the weights not below it count or sum to `target`."""
    low, high = float_bits(bound), np.int32(_ONE + 1)
    while high - low > 1:
        middle = low + (high - low) // 2
        value = widen(np.uint32(middle))
        if (_count_from(weights, value) if is_count else _sum_from(weights, value)) >= target:
            low = middle
        else:
            high = middle
    return widen(np.uint32(low))


@compiled()
def _count_from(weights: Any, bound: Any) -> Any:
    count = np.int32(0)
    for index in range(len(weights)):
        count = np.int32(count + np.int32(weights[index] >= bound))
    return count


@compiled()
def _sum_from(weights: Any, bound: Any) -> Any:
    """Return the sum of the weights of at least `bound`, in float64."""
    total = 0.0
    for index in range(len(weights)):
        weight = weights[index]
        total += np.float64(weight if weight >= bound else np.float32(0))
    return total


@compiled()
def _max_weight(weights: Any) -> Any:
    bits, largest = weights.view(np.int32), np.int32(0)
    for index in range(len(bits)):
        largest = max(largest, bits[index])
    return widen(np.uint32(largest))
