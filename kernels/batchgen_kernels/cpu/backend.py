"""The CPU backend: a step cut into tasks for the compiled kernel over pages (`attention.py`).

The queries of all rows of a prefix group meet the group's shared blocks together, in whole tiles; what is left of a row
(the one query of a decode, or a prefill chunk, against the row's own blocks) goes on from there. Nothing is gathered,
padded or merged apart. Layers with a window shorter than a row, a soft cap, sinks, different head sizes of K and V, or
heads of less than 64 bytes are computed by the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen_kernels.contract import (
    AttentionOptions,
    AttentionStep,
    BlockGroup,
    LayerCache,
    SampledTokens,
    SamplingRows,
)
from batchgen_kernels.cpu import sampling
from batchgen_kernels.cpu.attention import TILE_ROWS, Bits, attend_tasks, scratch, tile_of
from batchgen_kernels.cpu.compile import as_bits
from batchgen_kernels.cpu.llvm import LANES
from batchgen_kernels.cpu.pool import LIMIT, NUM_QUERIES, START, STOP, write_rows
from batchgen_kernels.reference import ReferenceBackend

_MIN_SAVED_TOKENS = 256  # (rows - 1) * shared tokens: below this, reading them once does not pay for a task of its own
_TASK_COST = 16  # of beginning and ending a tile, in keys

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Rows of `pool.py` task columns, and the running sum of their costs [tasks + 1]."""

    rows: npt.NDArray[np.int64]
    costs: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Prepared:
    """A step, and its tasks for each number of query heads that share a KV head: of the groups, and of the rows."""

    step: AttentionStep
    groups: list[BlockGroup]
    num_threads: int
    tasks: dict[int, tuple[_Tasks | None, _Tasks]] = field(default_factory=dict)

    def of(self, num_shared: int) -> tuple[_Tasks | None, _Tasks]:
        """The tasks where `num_shared` query heads share a KV head."""
        if num_shared not in self.tasks:
            tile = max(TILE_ROWS // num_shared, 1)
            groups = _group_tasks(self.step, self.groups, tile) if self.groups else None
            self.tasks[num_shared] = groups, _row_tasks(self.step, self.groups, tile)
        return self.tasks[num_shared]


class _Pool(NamedTuple):
    """A layer's pages as bits, and the tensors, whose identity stands for them."""

    cache: LayerCache
    key: npt.NDArray[np.generic]
    value: npt.NDArray[np.generic]


class CpuBackend:
    """See the module docstring; float32, bfloat16 and float16."""

    def __init__(self) -> None:
        self._reference = ReferenceBackend()
        self._pools: dict[int, _Pool] = {}
        self._scratch: dict[tuple[np.dtype[Any], int, int], tuple[Bits, ...]] = {}
        self._num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(self._num_threads)
        torch.set_num_threads(self._num_threads)  # numba's launch has set the shared runtime to the number of cores

    def prepare(self, step: AttentionStep) -> _Prepared:
        """Choose the groups that pay, the same for every layer."""
        groups = [group for group in step.groups if _saved_tokens(group, step.block_size) >= _MIN_SAVED_TOKENS]
        return _Prepared(step, groups, self._num_threads)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        prepared: _Prepared,
        options: AttentionOptions,
    ) -> Tensor:
        """See `contract.AttentionBackend`."""
        step = prepared.step
        if _needs_reference(step, key, value, options):
            return self._reference.attend(query, key, value, cache, self._reference.prepare(step), options)
        slots = step.slot_mapping.numpy()
        pool = self._pool(cache)
        write_rows(as_bits(key), pool.key, slots)
        write_rows(as_bits(value), pool.value, slots)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        num_shared = query.shape[1] // key.shape[1]
        group_tasks, row_tasks = prepared.of(num_shared)
        state = np.empty((*query.shape[:2], query.shape[2] + 2) if group_tasks else (0, 0, 0), np.float32)
        for tasks in (group_tasks, row_tasks) if group_tasks else (row_tasks,):
            assert tasks is not None
            attend_tasks(
                as_bits(query),
                pool.key,
                pool.value,
                np.ascontiguousarray(step.block_tables.numpy()),
                tasks.rows,
                tasks.costs,
                np.float32(options.scale / math.log(2)),  # of the exponent to the base 2
                state,
                as_bits(output),
                prepared.num_threads,
                tile_of(pool.key.dtype),
                *self._scratch_for(pool.key.dtype, num_shared, query.shape[2]),
            )
        return output

    def warm_up(self, num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Attend and choose for one token of such a model, so that all that needs is compiled, or read from disk.

        For a thread beside the one that works: it starts no threads of its own, and leaves nothing behind.
        """
        numba.set_num_threads(1)  # of this thread only
        query, key = (
            torch.zeros(1, num_heads, head_size, dtype=dtype),
            torch.zeros(1, num_kv_heads, head_size, dtype=dtype),
        )
        cache = LayerCache(key[:, :, None].clone(), key[:, :, None].clone())  # one block of one slot
        first = torch.zeros(1, dtype=torch.int64)
        step = self.prepare(AttentionStep(first, first[None], [0, 1], [1], [], block_size=1))
        self.attend(query, key, key, cache, step, AttentionOptions(scale=1.0))
        self._pools.pop(id(cache.key), None)
        self.sample(key[0], None)

    def _pool(self, cache: LayerCache) -> _Pool:
        """Of every layer once: looking at a tensor's numbers costs more than it seems, step after step."""
        if id(cache.key) not in self._pools:
            self._pools[id(cache.key)] = _Pool(cache, as_bits(cache.key), as_bits(cache.value))
        return self._pools[id(cache.key)]

    def _scratch_for(self, dtype: np.dtype[Any], num_shared: int, size: int) -> tuple[Bits, ...]:
        tile = (dtype, num_shared, size)
        if tile not in self._scratch:
            self._scratch[tile] = scratch(dtype, num_shared, size, self._num_threads)
        return self._scratch[tile]

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """See `sampling.SamplingBackend`."""
        return sampling.sample(logits, rows, self._num_threads)


def _saved_tokens(group: BlockGroup, block_size: int) -> int:
    return (group.stop - group.start - 1) * group.num_blocks * block_size


def _needs_reference(step: AttentionStep, key: Tensor, value: Tensor, options: AttentionOptions) -> bool:
    window = options.sliding_window
    return (
        options.soft_cap is not None
        or options.sinks is not None
        or (window is not None and max(step.seq_lens) > window)
        or options.scale <= 0  # the greatest score is looked for before it is scaled
        or key.shape[-1] != value.shape[-1]
        or key.shape[-1] * key.itemsize % 4 != 0  # not whole words
        or key.shape[-1] * key.itemsize < 4 * LANES  # less than a vector
    )


def _group_tasks(step: AttentionStep, groups: list[BlockGroup], tile: int) -> _Tasks:
    """Each group's queries against its shared blocks, which all of them see whole."""
    first_rows, stop_rows, num_blocks = np.array(groups, np.int64).T
    starts = np.array(step.query_starts)
    group, query, num_queries = _tiles(starts[first_rows], starts[stop_rows], tile)
    num_tokens = num_blocks[group] * step.block_size
    return _tasks(query, num_queries, first_rows[group], 0, num_tokens, num_tokens, False, False)


def _row_tasks(step: AttentionStep, groups: list[BlockGroup], tile: int) -> _Tasks:
    """Each row's queries against its own blocks, each up to itself."""
    first_own = np.zeros(step.num_rows, np.int64)
    for group in groups:
        first_own[group.start : group.stop] = group.num_blocks * step.block_size
    starts = np.array(step.query_starts)
    row, query, num_queries = _tiles(starts[:-1], starts[1:], tile)
    first, length = first_own[row], np.array(step.seq_lens)[row]
    limit = length - (starts[row + 1] - query) + 1
    return _tasks(query, num_queries, row, first, length, limit, first > 0, True)


def _tiles(starts: _Ints, stops: _Ints, tile: int) -> tuple[_Ints, _Ints, _Ints]:
    """Cut each of the ranges of queries: of every tile the range, the first query and how many."""
    counts = -(-(stops - starts) // tile)
    ranges = np.repeat(np.arange(len(counts)), counts)
    queries = (starts - (np.cumsum(counts) - counts) * tile)[ranges] + np.arange(len(ranges)) * tile
    return ranges, queries, np.minimum(stops[ranges] - queries, tile)


def _tasks(*columns: npt.ArrayLike) -> _Tasks:
    """Of the columns in the order of `pool.py`."""
    rows = np.empty((len(np.asarray(columns[0])), len(columns)), np.int64)
    for index, column in enumerate(columns):
        rows[:, index] = column
    num_queries, start = rows[:, NUM_QUERIES], rows[:, START]
    stop = np.minimum(rows[:, STOP], rows[:, LIMIT] + num_queries - 1)
    # Turning a key into words costs about as much as two queries.
    costs = (stop - start + _TASK_COST) * (num_queries + 2)
    return _Tasks(rows, np.concatenate([[0], np.cumsum(costs)]).astype(np.float64))
