"""Attention of query tiles over the pages of the KV pool, compiled by numba at first use and kept on disk.

A **task** is a run of queries against a run of pages that they see, all of it or each up to itself. For every task and
KV head, the query heads that share it are stacked into one tile; keys and values are read where they are, `KEYS` at a
time, turned into words (`vector.py`) and multiplied with the whole tile; the softmax runs online in float32
(FlashAttention, arXiv 2205.14135).

A query may be in two tasks, its prefix group's and its row's own: the first leaves the running softmax in the state,
the second goes on from there and writes the output.
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
    KEYS,
    LIMIT,
    LINE_BYTES,
    NUM_QUERIES,
    QUERY,
    START,
    STOP,
    TABLE,
    find_rows,
    interleave_values,
    is_finite,
    prefetch_next,
    transpose_keys,
)
from batchgen_kernels.cpu.softmax import exp2, exponentials, greatest
from batchgen_kernels.cpu.vector import COLUMNS, ROWS, address, call, multiply, narrow, widen

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
    """All tasks and KV heads, split over the threads by cost.

    query and output [T, heads, size], keys and values [blocks, KV heads, block_size, size], all as bits; `costs`
    [tasks + 1] the running sum; state [T, heads, size + 2] float32: the weighted sum of values, the greatest score, the
    sum of weights; `tile` what `tile_of` gives, and from `queries` on what `scratch` gives. All arrays contiguous.
    """
    num_heads = keys.shape[1]
    for thread in prange(num_threads):
        for task in range(len(tasks)):
            for head in range(num_heads):
                begin = costs[task] + (costs[task + 1] - costs[task]) * head / num_heads
                if int(begin * num_threads / costs[-1]) == thread:
                    call(tile, (
                        query, keys, values, tables, tasks, task, head, scale, state, output, queries[thread],
                        transposed[thread], interleaved[thread], scores[thread], weights[thread], total[thread],
                        limits[thread], rows[thread],
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
        queries, pool, pool, tables, tables, index, index, single, state, queries,
        scratch, words, words, singles, scratch, singles, indices, indices,
    )  # fmt: skip
    _attend_tile.compile(signature)
    result = _attend_tile.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def scratch(dtype: np.dtype[Any], num_shared: int, size: int, num_threads: int) -> tuple[Bits, ...]:
    """What `attend_tasks` works in, for each thread: room for a tile, where `num_shared` heads share a KV head."""
    num_rows = max(TILE_ROWS, -(-num_shared // ROWS) * ROWS)
    width = -(-size // COLUMNS) * COLUMNS
    per_word = 4 // dtype.itemsize
    shapes: list[tuple[npt.DTypeLike, tuple[int, ...]]] = [
        (dtype, (num_rows, width)),  # the queries
        (np.uint32, (width // per_word, KEYS)),  # keys, turned
        (np.uint32, (KEYS // per_word, width)),  # values, paired
        (np.float32, (num_rows, KEYS)),  # scores
        (dtype, (num_rows, KEYS)),  # weights
        (np.float32, (num_rows, width + LANES)),  # weighted sums of values
        (np.int64, (num_rows,)),  # how many tokens a query sees
        (np.int64, (KEYS,)),  # where the keys are
    ]
    return tuple(_zeros((num_threads, *shape), np.dtype(each)) for each, shape in shapes)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Bits:
    """Whole vectors of which never lie in two cache lines."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + LINE_BYTES, np.uint8)
    first = -room.ctypes.data % LINE_BYTES
    return room[first : first + size].view(dtype).reshape(shape)


@compiled()
def _attend_tile(
    query: Any, keys: Any, values: Any, tables: Any, tasks: Any, index: Any, head: Any, scale: Any, state: Any,
    output: Any,
    queries: Any, transposed: Any, interleaved: Any, scores: Any, weights: Any, total: Any, limits: Any, rows: Any,
) -> None:  # fmt: skip
    """One task and KV head. The last line of arguments is this thread's scratch."""
    task = tasks[index]
    num_rows = _load_tile(query, task, head, keys.shape[1], state, queries, total, limits)
    stop = min(task[STOP], task[LIMIT] + task[NUM_QUERIES] - 1)
    per_word = 4 // query.itemsize
    for start in range(task[START], stop, KEYS):
        num_keys = min(stop - start, KEYS)
        prefetch_next(keys, values, tables, tasks, index, head, start + KEYS, stop, rows)
        find_rows(tables[task[TABLE]], head, keys.shape[1], keys.shape[2], start, num_keys, rows)
        transpose_keys(keys, rows, num_keys, transposed)
        interleave_values(values, rows, num_keys, interleaved)
        _score(queries, transposed, num_rows, num_keys, scores)
        _weigh(scores, scale, num_rows, start, limits, num_keys, total, weights)
        if start + num_keys > limits[0] and not is_finite(values, rows, limits[0] - start, num_keys):
            _sum_seen_values(values, rows, weights, num_rows, start, limits, num_keys, total)
        else:
            _sum_values(interleaved, weights, num_rows, -(-num_keys // per_word), total)
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
def _score(queries: Any, transposed: Any, num_rows: Any, num_keys: Any, scores: Any) -> None:
    stride = queries.shape[1] * queries.itemsize // 4
    scores[:num_rows] = 0
    for row in range(0, num_rows, ROWS):
        for key in range(0, num_keys, COLUMNS):
            multiply(
                queries,
                address(queries) + row * stride * 4,
                stride,
                address(transposed) + key * 4,
                KEYS,
                stride,
                address(scores) + (row * KEYS + key) * 4,
                KEYS,
            )


@compiled()
def _weigh(
    scores: Any, scale: Any, num_rows: Any, start: Any, limits: Any, num_keys: Any, total: Any, weights: Any
) -> None:
    """One step of the online softmax: scores become weights; what was summed so far is scaled to the new maximum."""
    width = total.shape[1] - LANES
    for row in range(num_rows):
        line = address(scores) + row * KEYS * 4
        limit = min(limits[row] - start, num_keys)
        before = total[row, width]
        most = max(before, greatest(line, KEYS, limit) * scale)
        out = address(weights) + row * KEYS * weights.itemsize
        added = exponentials(weights, line, KEYS, limit, scale, most, out)
        if most > before:
            factor = exp2(before - most)
            for column in range(width):
                total[row, column] *= factor
            total[row, width + 1] *= factor
            total[row, width] = most
        total[row, width + 1] += added


@compiled()
def _sum_values(interleaved: Any, weights: Any, num_rows: Any, num_words: Any, total: Any) -> None:
    """Add weights x values to the sums."""
    width = interleaved.shape[1]
    stride = KEYS * weights.itemsize // 4
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
    num_shared, size, width = output.shape[1] // num_kv_heads, output.shape[2], total.shape[1] - LANES
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
