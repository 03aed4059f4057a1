"""Token choice on the CPU, compiled by numba at first use: rows in parallel, each a few passes over its vocabulary.

A row's weights are computed once, in float32, and stay in the cache; nothing is sorted. The least weight that top_k and
top_p keep is found by bisection on the bits of a float32, which order numbers above 0 as integers: a pass over the
candidates counts, or sums, those that are at least as great. Sums are in float64 and in an order of their own row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from batchgen_kernels.contract import SampledTokens, SamplingRows
from batchgen_kernels.cpu.compile import as_bits, compiled
from batchgen_kernels.cpu.vector import as_word, exponential, widen
from batchgen_kernels.philox import uniform

_BLOCK = 256  # weights whose sum, or greatest, is kept
_ONE = 0x3F800000  # the bits of 1.0, which is the weight of the best
_SIGN = 0x7FFFFFFF  # all bits but that of the sign


def sample(logits: Tensor, rows: SamplingRows | None, num_threads: int) -> SampledTokens:
    """See `sampling.SamplingBackend`."""
    bits = as_bits(logits)
    tokens, best = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.float32)
    _take_best(bits, tokens.numpy(), best.numpy())
    if rows is not None:
        words = (column.numpy().view(np.uint64) for column in (rows.keys, rows.positions, rows.samples))
        columns = (column.numpy() for column in (rows.temperatures, rows.top_p, rows.min_p, rows.top_k))
        _draw_rows(bits, best.numpy(), *columns, uniform(*words), num_threads, tokens.numpy())
    return SampledTokens(tokens, best)


@compiled(parallel=True)
def _take_best(logits: Any, tokens: Any, best: Any) -> None:
    """Of logits [rows, vocab] as bits; token 0 where the best is not finite."""
    for row in prange(len(logits)):
        best[row] = _greatest(logits[row])
        tokens[row] = _first(logits[row], best[row]) if np.isfinite(best[row]) else 0


@compiled()
def _greatest(logits: Any) -> Any:
    """NaN if any is. As integers, since the greatest of floats is no plain vector loop."""
    most, least = np.int32(-_SIGN), np.int32(_SIGN)
    for token in range(len(logits)):
        word = as_word(widen(logits[token]))
        ordered = word ^ ((word >> np.int32(31)) & np.int32(_SIGN))
        most, least = max(most, ordered), min(least, ordered)
    infinity = as_word(np.float32(np.inf))
    if most > infinity or least < -infinity - np.int32(1):
        return np.float32(np.nan)
    return widen(np.uint32(most ^ ((most >> np.int32(31)) & np.int32(_SIGN))))


@compiled()
def _first(logits: Any, wanted: Any) -> Any:
    """Where the number first is."""
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
def _draw_rows(
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
    """tokens [rows] of all rows with a temperature; the others stay as they are."""
    num_rows, vocab = logits.shape
    for thread in prange(num_threads):
        weights = np.empty(vocab, np.float32)
        candidates = np.empty(vocab, np.float32)
        sums = np.empty(-(-vocab // _BLOCK), np.float64)
        for row in range(thread * num_rows // num_threads, (thread + 1) * num_rows // num_threads):
            if temperatures[row] > 0 and np.isfinite(best[row]):
                _weigh(logits[row], best[row], temperatures[row], weights)
                least = _least_kept(weights, top_k[row], top_p[row], candidates)
                tokens[row] = _look_up(weights, max(least, min_p[row]), draws[row], sums)


@compiled()
def _weigh(logits: Any, best: Any, temperature: Any, weights: Any) -> None:
    for token in range(len(logits)):
        weights[token] = exponential((widen(logits[token]) - best) / temperature)


@compiled()
def _look_up(weights: Any, least: Any, draw: Any, sums: Any) -> Any:
    """The first token whose cumulative weight exceeds the draw's share of what is kept."""
    total = 0.0
    for block in range(len(sums)):
        sums[block] = _sum_from(weights[block * _BLOCK : (block + 1) * _BLOCK], least)
        total += sums[block]
    # A draw just below 1 must not round up to the total, where no token is.
    target = min(draw * total, np.nextafter(total, 0.0))
    before, block = 0.0, 0
    while before + sums[block] <= target:
        before += sums[block]
        block += 1
    token = 0
    for index in range(block * _BLOCK, min((block + 1) * _BLOCK, len(weights))):
        if weights[index] >= least and weights[index] > 0:
            token = index
            before += weights[index]
            if before > target:
                break
    return token  # the block's last one, where its sum in another order falls short


@compiled()
def _least_kept(weights: Any, top_k: Any, top_p: Any, candidates: Any) -> Any:
    """The least weight that top_k and then top_p keep."""
    least, mass = np.float32(0), 0.0
    if 0 < top_k < len(weights):
        least = _kth_greatest(weights, top_k, candidates)
        greater = np.nextafter(least, np.float32(2))
        mass = _sum_from(weights, greater) + (top_k - _count_from(weights, greater)) * least
    elif top_p < 1:
        mass = _sum_from(weights, least)
    if top_p < 1:
        target = top_p * mass
        # What is less than this all together is less than what may be left out.
        least = max(least, np.float32((mass - target) / len(weights)))
        num_candidates = _gather(weights, least, candidates)
        least = _bisect(candidates[:num_candidates], least, target, False)
    return least


@compiled()
def _kth_greatest(weights: Any, k: Any, candidates: Any) -> Any:
    num_blocks = len(weights) // _BLOCK
    for block in range(num_blocks):
        candidates[block] = _greatest_weight(weights[block * _BLOCK : (block + 1) * _BLOCK])
    least = np.float32(0)
    if k <= num_blocks:  # the k-th greatest of one weight a block is at most that of all
        least = _bisect(candidates[:num_blocks], least, k, True)
    return _bisect(candidates[: _gather(weights, least, candidates)], least, k, True)


@compiled()
def _gather(weights: Any, least: Any, candidates: Any) -> Any:
    """The weights from `least` on to the beginning of `candidates`; returns how many."""
    count = 0
    for start in range(0, len(weights), _BLOCK):
        block = weights[start : start + _BLOCK]
        if _greatest_weight(block) >= least:
            for index in range(len(block)):
                candidates[count] = block[index]
                count += block[index] >= least  # no branch, which would be guessed wrong too often
    return count


@compiled()
def _bisect(weights: Any, least: Any, target: Any, is_count: Any) -> Any:
    """The greatest number from `least` on with `target` weights, or weights that sum to it, at least as great."""
    low, high = as_word(least), np.int32(_ONE + 1)
    while high - low > 1:
        middle = low + (high - low) // 2
        bound = widen(np.uint32(middle))
        if (_count_from(weights, bound) if is_count else _sum_from(weights, bound)) >= target:
            low = middle
        else:
            high = middle
    return widen(np.uint32(low))


@compiled()
def _count_from(weights: Any, least: Any) -> Any:
    count = np.int32(0)
    for index in range(len(weights)):
        count = np.int32(count + np.int32(weights[index] >= least))
    return count


@compiled()
def _sum_from(weights: Any, least: Any) -> Any:
    """In float64."""
    total = 0.0
    for index in range(len(weights)):
        weight = weights[index]
        total += np.float64(weight if weight >= least else np.float32(0))
    return total


@compiled()
def _greatest_weight(weights: Any) -> Any:
    words, most = weights.view(np.int32), np.int32(0)
    for index in range(len(words)):
        most = max(most, words[index])
    return widen(np.uint32(most))
