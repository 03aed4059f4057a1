"""Attention of query tiles over the pages of the KV pool, compiled by numba at first use and kept on disk.

A **task** is a run of queries against a run of pages that they see, all of it or each up to itself. For every task and
KV head, the query heads that share it are stacked into one tile; keys and values are read where they are, `_KEYS` at a
time, turned into words (`vector.py`) and multiplied with the whole tile; the softmax runs online in float32
(FlashAttention, arXiv 2205.14135).

A query may be in two tasks, its prefix group's and its row's own: the first leaves the running softmax in the state,
the second goes on from there and writes the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba import njit, prange, types
from torch import Tensor

from batchgen_kernels.vector import (
    COLUMNS,
    LANES,
    ROWS,
    address,
    call,
    exponential,
    greatest,
    multiply,
    narrow,
    prefetch,
    transpose,
    widen,
)

# torch's own threads, where both find the same OpenMP library; two runtimes in one process spin against each other.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

TILE_ROWS = 64  # queries x query heads of a KV head
_LINE_BYTES = 64  # of a cache line
_KEYS = 64  # that meet a tile at once

# The columns of a task: queries [QUERY, QUERY + NUM_QUERIES) of the step against the tokens [START, STOP) of the block
# table of row TABLE; query i sees those before LIMIT + i. It goes on from the state if CONTINUES, else begins; it
# writes the output if ENDS, else the state.
QUERY, NUM_QUERIES, TABLE, START, STOP, LIMIT, CONTINUES, ENDS = range(8)

# The integer type by which numba knows the numbers of a tensor.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered; NaN and infinity keep their meaning


def as_bits(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The numbers of a tensor as numba knows them, contiguous; no copy where they are so already."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy()


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's compiler as all kernels here use it."""
    return njit(fastmath=_FAST, cache=True, nogil=True, **options)  # type: ignore[no-any-return]


@compiled(parallel=True)
def write_rows(new: Any, pool: Any, slots: Any) -> None:
    """pool [blocks, heads, block_size, size] at slots [T] = new [T, heads, size]."""
    block_size = pool.shape[2]
    for token in prange(len(slots)):
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(pool.shape[1]):
            for column in range(pool.shape[3]):
                pool[block, head, offset, column] = new[token, head, column]


@compiled(parallel=True)
def attend_tasks(
    query: Any,
    keys: Any,
    values: Any,
    tables: Any,
    tasks: Any,
    costs: Any,
    scale: Any,
    state: Any,
    output: Any,
    num_threads: Any,
    tile: Any,
) -> None:
    """All tasks and KV heads, split over the threads by cost.

    query and output [T, heads, size], keys and values [blocks, KV heads, block_size, size], all as bits; `costs`
    [tasks + 1] the running sum; state [T, heads, size + 2] float32: the weighted sum of values, the greatest score, the
    sum of weights; `tile` what `tile_of` gives. All arrays contiguous.
    """
    num_heads = keys.shape[1]
    for thread in prange(num_threads):
        num_rows = max(TILE_ROWS, -(-query.shape[1] // num_heads // ROWS) * ROWS)
        width = -(-query.shape[2] // COLUMNS) * COLUMNS
        per_word = 4 // query.itemsize
        queries = np.zeros((num_rows, width), query.dtype)
        turned = np.zeros((width // per_word, _KEYS), np.uint32)
        paired = np.zeros((_KEYS // per_word, width), np.uint32)
        scores = np.empty((num_rows, _KEYS), np.float32)
        weights = np.empty((num_rows, _KEYS), query.dtype)
        total = np.empty((num_rows, width + 2), np.float32)
        limits = np.empty(num_rows, np.int64)
        rows = np.empty(_KEYS, np.int64)
        for task in range(len(tasks)):
            for head in range(num_heads):
                begin = costs[task] + (costs[task + 1] - costs[task]) * head / num_heads
                if int(begin * num_threads / costs[-1]) == thread:
                    call(tile, (
                        query, keys, values, tables, tasks[task], head, scale, state, output,
                        queries, turned, paired, scores, weights, total, limits, rows,
                    ))  # fmt: skip


@cache
def tile_of(bits: np.dtype[Any]) -> int:
    """The address of `_attend_tile`, compiled for numbers that numba knows by this integer type.

    By address, since a function that a parallel loop calls is otherwise compiled once more in each of the four that
    numba wraps around the loop: 2.6 of 7 seconds.
    """
    number, word, single, index = numba.from_dtype(bits), types.uint32, types.float32, types.int64
    queries, pool, scratch = (types.Array(number, ndim, "C") for ndim in (3, 4, 2))
    words, singles = types.Array(word, 2, "C"), types.Array(single, 2, "C")
    indices, tables, state = types.Array(index, 1, "C"), types.Array(index, 2, "C"), types.Array(single, 3, "C")
    signature = (
        queries, pool, pool, tables, indices, index, single, state, queries,
        scratch, words, words, singles, scratch, singles, indices, indices,
    )  # fmt: skip
    _attend_tile.compile(signature)
    result = _attend_tile.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


@compiled()
def _attend_tile(
    query: Any, keys: Any, values: Any, tables: Any, task: Any, head: Any, scale: Any, state: Any, output: Any,
    queries: Any, turned: Any, paired: Any, scores: Any, weights: Any, total: Any, limits: Any, rows: Any,
) -> None:  # fmt: skip
    """One task and KV head. The second line of arguments is this thread's scratch."""
    num_rows = _load_tile(query, task, head, keys.shape[1], state, queries, total, limits)
    stop = min(task[STOP], task[LIMIT] + task[NUM_QUERIES] - 1)
    per_word = 4 // query.itemsize
    for start in range(task[START], stop, _KEYS):
        num_keys = min(stop - start, _KEYS)
        _ask_for_next(keys, values, tables[task[TABLE]], task, head, start + _KEYS, stop, rows)
        _find_rows(tables[task[TABLE]], head, keys.shape[1], keys.shape[2], start, num_keys, rows)
        _turn_keys(keys, rows, num_keys, turned)
        _pair_values(values, rows, num_keys, paired)
        _score(queries, turned, num_rows, num_keys, scores)
        _weigh(scores, scale, num_rows, start, limits, num_keys, total, weights)
        if start + num_keys > limits[0] and not _is_finite(values, rows, limits[0] - start, num_keys):
            _sum_seen_values(values, rows, weights, num_rows, start, limits, num_keys, total)
        else:
            _sum_values(paired, weights, num_rows, -(-num_keys // per_word), total)
    _store_tile(task, head, keys.shape[1], state, output, total)


@compiled()
def _load_tile(
    query: Any, task: Any, head: Any, num_kv_heads: Any, state: Any, queries: Any, total: Any, limits: Any
) -> Any:
    """Stack the queries; returns the number of rows, padded to whole products with queries of 0."""
    num_shared, size, width = query.shape[1] // num_kv_heads, query.shape[2], queries.shape[1]
    num_used = task[NUM_QUERIES] * num_shared
    num_rows = -(-num_used // ROWS) * ROWS
    for row in range(num_rows):
        at, query_head = task[QUERY] + row // num_shared, head * num_shared + row % num_shared
        limits[row] = task[LIMIT] + min(row, num_used - 1) // num_shared
        total[row, :] = 0
        total[row, width] = -np.inf
        if row >= num_used:
            queries[row, :] = 0
            continue
        for column in range(size):
            queries[row, column] = query[at, query_head, column]
        if task[CONTINUES]:
            for column in range(size):
                total[row, column] = state[at, query_head, column]
            total[row, width] = state[at, query_head, size]
            total[row, width + 1] = state[at, query_head, size + 1]
    return num_rows


@compiled()
def _find_rows(table: Any, head: Any, num_heads: Any, block_size: Any, start: Any, num_keys: Any, rows: Any) -> None:
    """Where the keys from `start` on lie, in rows of the pool; past the last one, that one again."""
    place, offset = start // block_size, start % block_size
    for key in range(num_keys):
        rows[key] = (table[place] * num_heads + head) * block_size + offset
        offset += 1
        if offset == block_size:
            place, offset = place + 1, 0
    rows[num_keys:] = rows[num_keys - 1]


@compiled()
def _ask_for_next(keys: Any, values: Any, table: Any, task: Any, head: Any, start: Any, stop: Any, rows: Any) -> None:
    """Have the keys and values fetched that come next, of this head or of the next one; pages lie anywhere."""
    if start >= stop:
        head, start = head + 1, task[START]
    if head == keys.shape[1]:
        return
    num_keys = min(stop - start, _KEYS)
    _find_rows(table, head, keys.shape[1], keys.shape[2], start, num_keys, rows)
    row_bytes = keys.shape[3] * keys.itemsize
    for key in range(num_keys):
        for line in range(rows[key] * row_bytes, (rows[key] + 1) * row_bytes, _LINE_BYTES):
            prefetch(address(keys) + line)
            prefetch(address(values) + line)


@compiled()
def _turn_keys(keys: Any, rows: Any, num_keys: Any, turned: Any) -> None:
    """turned [words, _KEYS]: the keys' words, one key a column."""
    num_words = keys.shape[3] * keys.itemsize // 4
    for key in range(0, num_keys, LANES):
        for first in range(0, num_words, LANES):
            word = min(first, num_words - LANES)
            transpose(
                address(keys) + word * 4,
                address(rows) + key * 8,
                num_words * 4,
                address(turned) + (word * _KEYS + key) * 4,
                _KEYS,
            )


@compiled()
def _pair_values(values: Any, rows: Any, num_keys: Any, paired: Any) -> None:
    """paired [_KEYS / numbers a word, width]: each word the numbers of neighbouring keys."""
    size = values.shape[3]
    flat = values.reshape((-1, size))
    if values.itemsize == 4:
        for key in range(num_keys):
            for column in range(size):
                paired[key, column] = flat[rows[key], column]
    else:
        for pair in range((num_keys + 1) // 2):
            low, high = rows[2 * pair], rows[2 * pair + 1]
            for column in range(size):
                paired[pair, column] = np.uint32(np.uint16(flat[low, column])) | (
                    np.uint32(np.uint16(flat[high, column])) << np.uint32(16)
                )


@compiled()
def _score(queries: Any, turned: Any, num_rows: Any, num_keys: Any, scores: Any) -> None:
    stride = queries.shape[1] * queries.itemsize // 4
    scores[:num_rows] = 0
    for row in range(0, num_rows, ROWS):
        for key in range(0, num_keys, COLUMNS):
            multiply(
                queries,
                address(queries) + row * stride * 4,
                stride,
                address(turned) + key * 4,
                _KEYS,
                stride,
                address(scores) + (row * _KEYS + key) * 4,
                _KEYS,
            )


@compiled()
def _weigh(
    scores: Any, scale: Any, num_rows: Any, start: Any, limits: Any, num_keys: Any, total: Any, weights: Any
) -> None:
    """One step of the online softmax: scores become weights; what was summed so far is scaled to the new maximum."""
    width = total.shape[1] - 2
    for row in range(num_rows):
        limit = min(limits[row] - start, num_keys)
        for key in range(_KEYS):
            scores[row, key] = scores[row, key] * scale if key < limit else np.float32(-np.inf)
        before = total[row, width]
        most = max(before, greatest(address(scores) + row * _KEYS * 4, _KEYS))
        added = np.float32(0)
        for key in range(_KEYS):
            weight = exponential(scores[row, key] - most)
            added += weight
            weights[row, key] = narrow(weights, weight)
        factor = exponential(before - most)
        for column in range(width):
            total[row, column] *= factor
        total[row, width] = most
        total[row, width + 1] = total[row, width + 1] * factor + added


@compiled()
def _sum_values(paired: Any, weights: Any, num_rows: Any, num_words: Any, total: Any) -> None:
    """Add weights x values to the sums."""
    width = paired.shape[1]
    stride = _KEYS * weights.itemsize // 4
    for row in range(0, num_rows, ROWS):
        for column in range(0, width, COLUMNS):
            multiply(
                weights,
                address(weights) + row * stride * 4,
                stride,
                address(paired) + column * 4,
                width,
                num_words,
                address(total) + (row * (width + 2) + column) * 4,
                width + 2,
            )


@compiled()
def _is_finite(values: Any, rows: Any, first: Any, num_keys: Any) -> Any:
    """Whether the values that not all queries see are finite: a weight of 0 does not remove one that is not."""
    flat = values.reshape((-1, values.shape[3]))
    for key in range(max(first, 0), num_keys):
        for column in range(values.shape[3]):
            if not np.isfinite(widen(flat[rows[key], column])):
                return False
    return True


@compiled()
def _sum_seen_values(
    values: Any, rows: Any, weights: Any, num_rows: Any, start: Any, limits: Any, num_keys: Any, total: Any
) -> None:
    """As `_sum_values`, reading no value that a query does not see."""
    flat = values.reshape((-1, values.shape[3]))
    for row in range(num_rows):
        for key in range(min(limits[row] - start, num_keys)):
            weight = widen(weights[row, key])
            for column in range(values.shape[3]):
                total[row, column] += weight * widen(flat[rows[key], column])


@compiled()
def _store_tile(task: Any, head: Any, num_kv_heads: Any, state: Any, output: Any, total: Any) -> None:
    num_shared, size, width = output.shape[1] // num_kv_heads, output.shape[2], total.shape[1] - 2
    for row in range(task[NUM_QUERIES] * num_shared):
        at, query_head = task[QUERY] + row // num_shared, head * num_shared + row % num_shared
        if task[ENDS]:
            inverse = np.float32(1) / total[row, width + 1]
            for column in range(size):
                output[at, query_head, column] = narrow(output, total[row, column] * inverse)
        else:
            for column in range(size):
                state[at, query_head, column] = total[row, column]
            state[at, query_head, size] = total[row, width]
            state[at, query_head, size + 1] = total[row, width + 1]
