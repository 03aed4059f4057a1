"""Rows of the KV pool: written at a step's slots, and read for a tile of queries, `TILE_KEYS` at a time.

A tile is multiplied in 32-bit words (`vector.py`): keys are transposed, so that a vector holds one word of many keys;
16-bit values are interleaved, so that a word holds the same column of two neighbouring tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from batchgen_kernels.cpu.compile import compiled
from batchgen_kernels.cpu.llvm import LANES
from batchgen_kernels.cpu.vector import address, interleave, prefetch, transpose, widen

LINE_BYTES = 64  # size of a cache line
TILE_KEYS = 64  # keys that are multiplied with a tile of queries at once

# The columns of a task: queries [QUERY, QUERY + NUM_QUERIES) of the step against the tokens [START, STOP) of the block
# table of row TABLE; query i sees those before LIMIT + i. The softmax starts from the state if CONTINUES; the task
# writes the output if ENDS, else the state.
QUERY, NUM_QUERIES, TABLE, START, STOP, LIMIT, CONTINUES, ENDS = range(8)


@compiled(parallel=True)
def write_rows(new: Any, pool: Any, slots: Any) -> None:
    """Write new [T, heads, size] to the slots [T] of pool [blocks, heads, block_size, size]."""
    block_size = pool.shape[2]
    for token in prange(len(slots)):
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(pool.shape[1]):
            for column in range(pool.shape[3]):
                pool[block, head, offset, column] = new[token, head, column]


@compiled()
def find_rows(table: Any, head: Any, num_heads: Any, block_size: Any, start: Any, num_keys: Any, rows: Any) -> None:
    """Write the pool rows of `num_keys` keys from position `start` on to `rows`; the last one fills the rest."""
    block, offset = start // block_size, start % block_size
    for key in range(num_keys):
        rows[key] = (table[block] * num_heads + head) * block_size + offset
        offset += 1
        if offset == block_size:
            block, offset = block + 1, 0
    rows[num_keys:] = rows[num_keys - 1]


@compiled()
def prefetch_next(
    keys: Any, values: Any, tables: Any, tasks: Any, index: Any, head: Any, start: Any, stop: Any, rows: Any
) -> None:
    """Prefetch the next keys and values: of this head, of the next head or of the next task."""
    if start >= stop:
        head, start = head + 1, tasks[index, START]
    if head == keys.shape[1]:
        index, head = index + 1, 0
        if index == len(tasks):
            return
        start, stop = tasks[index, START], tasks[index, STOP]
    num_keys = min(stop - start, TILE_KEYS)
    find_rows(tables[tasks[index, TABLE]], head, keys.shape[1], keys.shape[2], start, num_keys, rows)
    row_bytes = keys.shape[3] * keys.itemsize
    for key in range(num_keys):
        for line in range(rows[key] * row_bytes, (rows[key] + 1) * row_bytes, LINE_BYTES):
            prefetch(address(keys) + line)
            prefetch(address(values) + line)


@compiled()
def transpose_keys(keys: Any, rows: Any, num_keys: Any, transposed: Any) -> None:
    """Write the keys to transposed [words, TILE_KEYS], one key a column."""
    num_words = keys.shape[3] * keys.itemsize // 4
    for key in range(0, num_keys, LANES):
        for first in range(0, num_words, LANES):
            word = min(first, num_words - LANES)
            transpose(
                address(keys) + word * 4,
                address(rows) + key * 8,
                num_words * 4,
                address(transposed) + (word * TILE_KEYS + key) * 4,
                TILE_KEYS,
            )


@compiled()
def interleave_values(values: Any, rows: Any, num_keys: Any, interleaved: Any) -> None:
    """Write the values to interleaved [TILE_KEYS / numbers a word, width]; a word holds neighbouring tokens."""
    size = values.shape[3]
    flat = values.reshape((-1, size))
    if values.itemsize == 4:
        for key in range(num_keys):
            for column in range(size):
                interleaved[key, column] = flat[rows[key], column]
    else:
        for pair in range((num_keys + 1) // 2):
            for first in range(0, size, 2 * LANES):
                column = min(first, size - 2 * LANES)
                interleave(
                    address(values) + (rows[2 * pair] * size + column) * 2,
                    address(values) + (rows[2 * pair + 1] * size + column) * 2,
                    address(interleaved) + (pair * interleaved.shape[1] + column) * 4,
                )


@compiled()
def is_finite(values: Any, rows: Any, first: Any, num_keys: Any) -> Any:
    """Return whether the values that not all queries see are finite, as a weight of 0 does not cancel others."""
    flat = values.reshape((-1, values.shape[3]))
    zeros = np.float32(0)
    for key in range(max(first, 0), num_keys):
        for column in range(values.shape[3]):
            zeros += widen(flat[rows[key], column]) * np.float32(0)
    return zeros == 0
