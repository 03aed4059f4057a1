"""Attention of query tiles over the blocks of the KV pool, compiled by numba at first use and cached on disk.

A **task** is a range of queries against a range of a row's tokens, which the queries see whole or causally. For every
task and KV head, the query heads that share it are stacked into one tile. Keys and values are read in place through
the block table, `TILE_KEYS` at a time, and multiplied with the whole tile; the softmax is computed online in float32
(FlashAttention, arXiv 2205.14135).

A query may be in two tasks, that of its prefix group and that of its row: the first writes the running softmax to the
state, the second continues from there and writes the output.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import prange, types

from batchgen_kernels.cpu.compile import compiled
from batchgen_kernels.cpu.llvm import LANES
from batchgen_kernels.cpu.pool import (
    CONTINUES,
    ENDS,
    LIMIT,
    LINE_BYTES,
    NUM_QUERIES,
    QUERY,
    START,
    STOP,
    TABLE,
    TILE_KEYS,
    find_rows,
    interleave_values,
    is_finite,
    prefetch_next,
    transpose_keys,
)
from batchgen_kernels.cpu.softmax import exp2, exponentials, maximum
from batchgen_kernels.cpu.vector import COLUMNS, ROWS, address, call_address, multiply, narrow, widen

Bits = npt.NDArray[np.generic]

TILE_ROWS = 96  # queries x query heads of a KV head


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
    queries: Any,
    transposed: Any,
    interleaved: Any,
    scores: Any,
    weights: Any,
    total: Any,
    limits: Any,
    rows: Any,
) -> None:
    """Compute all tasks and KV heads, distributed over the threads by cost.

    query and output [T, heads, size], keys and values [blocks, KV heads, block_size, size], all as bits; costs
    [tasks + 1] are cumulative; state [T, heads, size + 2] float32 holds the weighted sum of values, the maximum score
    and the sum of weights; `tile` is a `tile_address`; from `queries` on, a `scratch`. All arrays are contiguous.
    """
    num_heads = keys.shape[1]
    for thread in prange(num_threads):
        for task in range(len(tasks)):
            for head in range(num_heads):
                begin = costs[task] + (costs[task + 1] - costs[task]) * head / num_heads
                if int(begin * num_threads / costs[-1]) == thread:
                    call_address(tile, (
                        query, keys, values, tables, tasks, task, head, scale, state, output, queries[thread],
                        transposed[thread], interleaved[thread], scores[thread], weights[thread], total[thread],
                        limits[thread], rows[thread],
                    ))  # fmt: skip


@cache
def tile_address(bits: np.dtype[Any]) -> int:
    """Return the address of `_attend_tile`, compiled for numbers that numba knows by this integer type.

    A function that a parallel loop calls by name is compiled again in each of the four functions that numba makes of
    the loop: 2.6 of 7 seconds.
    """
    number, word, single, index = numba.from_dtype(bits), types.uint32, types.float32, types.int64
    queries, pool, scratch = (types.Array(number, ndim, "C") for ndim in (3, 4, 2))
    words, singles = types.Array(word, 2, "C"), types.Array(single, 2, "C")
    indices, tables, state = types.Array(index, 1, "C"), types.Array(index, 2, "C"), types.Array(single, 3, "C")
    signature = (
        queries, pool, pool, tables, tables, index, index, single, state, queries,
        scratch, words, words, singles, scratch, singles, indices, indices,
    )  # fmt: skip
    _attend_tile.compile(signature)
    result = _attend_tile.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def scratch(dtype: np.dtype[Any], num_shared: int, size: int, num_threads: int) -> tuple[Bits, ...]:
    """Return the buffers of `attend_tasks` for a tile on each thread, where `num_shared` heads share a KV head."""
    num_rows = max(TILE_ROWS, -(-num_shared // ROWS) * ROWS)
    width = -(-size // COLUMNS) * COLUMNS
    per_word = 4 // dtype.itemsize
    shapes: list[tuple[npt.DTypeLike, tuple[int, ...]]] = [
        (dtype, (num_rows, width)),  # queries
        (np.uint32, (width // per_word, TILE_KEYS)),  # transposed keys
        (np.uint32, (TILE_KEYS // per_word, width)),  # interleaved values
        (np.float32, (num_rows, TILE_KEYS)),  # scores
        (dtype, (num_rows, TILE_KEYS)),  # weights
        (np.float32, (num_rows, width + LANES)),  # weighted sums of values
        (np.int64, (num_rows,)),  # number of tokens that a query sees
        (np.int64, (TILE_KEYS,)),  # pool rows of the keys
    ]
    return tuple(_zeros((num_threads, *shape), np.dtype(each)) for each, shape in shapes)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Bits:
    """Return zeros aligned to a cache line, so that no vector lies in two lines."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(size + LINE_BYTES, np.uint8)
    first = -buffer.ctypes.data % LINE_BYTES
    return buffer[first : first + size].view(dtype).reshape(shape)


@compiled()
def _attend_tile(
    query: Any, keys: Any, values: Any, tables: Any, tasks: Any, index: Any, head: Any, scale: Any, state: Any,
    output: Any,
    queries: Any, transposed: Any, interleaved: Any, scores: Any, weights: Any, total: Any, limits: Any, rows: Any,
) -> None:  # fmt: skip
    """Compute one task and KV head. The last line of arguments is this thread's scratch."""
    task = tasks[index]
    num_rows = _load_tile(query, task, head, keys.shape[1], state, queries, total, limits)
    stop = min(task[STOP], task[LIMIT] + task[NUM_QUERIES] - 1)
    per_word = 4 // query.itemsize
    for start in range(task[START], stop, TILE_KEYS):
        num_keys = min(stop - start, TILE_KEYS)
        prefetch_next(keys, values, tables, tasks, index, head, start + TILE_KEYS, stop, rows)
        find_rows(tables[task[TABLE]], head, keys.shape[1], keys.shape[2], start, num_keys, rows)
        transpose_keys(keys, rows, num_keys, transposed)
        interleave_values(values, rows, num_keys, interleaved)
        _compute_scores(queries, transposed, num_rows, num_keys, scores)
        _update_softmax(scores, scale, num_rows, start, limits, num_keys, total, weights)
        if start + num_keys > limits[0] and not is_finite(values, rows, limits[0] - start, num_keys):
            _add_visible_values(values, rows, weights, num_rows, start, limits, num_keys, total)
        else:
            _add_values(interleaved, weights, num_rows, -(-num_keys // per_word), total)
    _store_tile(task, head, keys.shape[1], state, output, total)


@compiled()
def _load_tile(
    query: Any, task: Any, head: Any, num_kv_heads: Any, state: Any, queries: Any, total: Any, limits: Any
) -> Any:
    """Stack the queries into a tile; return its number of rows, padded with zeros to a multiple of ROWS."""
    num_shared, size, width = query.shape[1] // num_kv_heads, query.shape[2], queries.shape[1]
    num_used = task[NUM_QUERIES] * num_shared
    num_rows = -(-num_used // ROWS) * ROWS
    for row in range(num_rows):
        token, query_head = task[QUERY] + row // num_shared, head * num_shared + row % num_shared
        limits[row] = task[LIMIT] + min(row, num_used - 1) // num_shared
        total[row, :] = 0
        total[row, width] = -np.inf
        if row >= num_used:
            queries[row, :] = 0
            continue
        for column in range(size):
            queries[row, column] = query[token, query_head, column]
        if task[CONTINUES]:
            for column in range(size):
                total[row, column] = state[token, query_head, column]
            total[row, width] = state[token, query_head, size]
            total[row, width + 1] = state[token, query_head, size + 1]
    return num_rows


@compiled()
def _compute_scores(queries: Any, transposed: Any, num_rows: Any, num_keys: Any, scores: Any) -> None:
    stride = queries.shape[1] * queries.itemsize // 4
    scores[:num_rows] = 0
    for row in range(0, num_rows, ROWS):
        for key in range(0, num_keys, COLUMNS):
            multiply(
                queries,
                address(queries) + row * stride * 4,
                stride,
                address(transposed) + key * 4,
                TILE_KEYS,
                stride,
                address(scores) + (row * TILE_KEYS + key) * 4,
                TILE_KEYS,
            )


@compiled()
def _update_softmax(
    scores: Any, scale: Any, num_rows: Any, start: Any, limits: Any, num_keys: Any, total: Any, weights: Any
) -> None:
    """One step of the online softmax: turn scores into weights, and rescale the sums to the new maximum."""
    width = total.shape[1] - LANES
    for row in range(num_rows):
        line = address(scores) + row * TILE_KEYS * 4
        limit = min(limits[row] - start, num_keys)
        before = total[row, width]
        largest = max(before, maximum(line, TILE_KEYS, limit) * scale)
        out = address(weights) + row * TILE_KEYS * weights.itemsize
        added = exponentials(weights, line, TILE_KEYS, limit, scale, largest, out)
        if largest > before:
            factor = exp2(before - largest)
            for column in range(width):
                total[row, column] *= factor
            total[row, width + 1] *= factor
            total[row, width] = largest
        total[row, width + 1] += added


@compiled()
def _add_values(interleaved: Any, weights: Any, num_rows: Any, num_words: Any, total: Any) -> None:
    """Add weights x values to the sums."""
    width = interleaved.shape[1]
    stride = TILE_KEYS * weights.itemsize // 4
    for row in range(0, num_rows, ROWS):
        for column in range(0, width, COLUMNS):
            multiply(
                weights,
                address(weights) + row * stride * 4,
                stride,
                address(interleaved) + column * 4,
                width,
                num_words,
                address(total) + (row * total.shape[1] + column) * 4,
                total.shape[1],
            )


@compiled()
def _add_visible_values(
    values: Any, rows: Any, weights: Any, num_rows: Any, start: Any, limits: Any, num_keys: Any, total: Any
) -> None:
    """Like `_add_values`, but without reading values that a query does not see."""
    flat = values.reshape((-1, values.shape[3]))
    for row in range(num_rows):
        for key in range(min(limits[row] - start, num_keys)):
            weight = widen(weights[row, key])
            for column in range(values.shape[3]):
                total[row, column] += weight * widen(flat[rows[key], column])


@compiled()
def _store_tile(task: Any, head: Any, num_kv_heads: Any, state: Any, output: Any, total: Any) -> None:
    num_shared, size, width = output.shape[1] // num_kv_heads, output.shape[2], total.shape[1] - LANES
    for row in range(task[NUM_QUERIES] * num_shared):
        token, query_head = task[QUERY] + row // num_shared, head * num_shared + row % num_shared
        if task[ENDS]:
            inverse = np.float32(1) / total[row, width + 1]
            for column in range(size):
                output[token, query_head, column] = narrow(output, total[row, column] * inverse)
        else:
            for column in range(size):
                state[token, query_head, column] = total[row, column]
            state[token, query_head, size] = total[row, width]
            state[token, query_head, size + 1] = total[row, width + 1]
