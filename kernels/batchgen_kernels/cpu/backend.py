"""The CPU backend: cuts a step into tasks for the compiled attention kernel (`attention.py`).

The queries of all rows of a prefix group attend to the group's shared blocks together, in full tiles; then each row's
queries (one of a decode, or a prefill chunk) continue with the row's own blocks. Nothing is gathered, padded or merged
separately. Layers with a window shorter than a row, a soft cap, sinks, different head sizes of K and V, or heads of
less than 64 bytes are computed by the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
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
from batchgen_kernels.cpu.attention import TILE_ROWS, Bits, attend_tasks, scratch, tile_address
from batchgen_kernels.cpu.compile import PREFERRED_CACHE, as_bits
from batchgen_kernels.cpu.llvm import LANES
from batchgen_kernels.cpu.pool import LIMIT, NUM_QUERIES, START, STOP, write_rows
from batchgen_kernels.reference import ReferenceBackend

_MIN_SAVED_TOKENS = 256  # (rows - 1) * shared tokens: below this, sharing the reads does not pay for a separate task
_TASK_COST = 16  # the cost of beginning and ending a tile, in keys

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks [tasks, columns as in `pool.py`], and their cumulative costs [tasks + 1]."""

    rows: npt.NDArray[np.int64]
    costs: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Prepared:
    """A step with its tasks, of groups and of rows, by the number of query heads that share a KV head."""

    step: AttentionStep
    groups: list[BlockGroup]
    num_threads: int
    tasks: dict[int, tuple[_Tasks | None, _Tasks]] = field(default_factory=dict)

    def tasks_for(self, num_shared: int) -> tuple[_Tasks | None, _Tasks]:
        """Return the tasks of groups and of rows if `num_shared` query heads share a KV head."""
        if num_shared not in self.tasks:
            tile = max(TILE_ROWS // num_shared, 1)
            groups = _group_tasks(self.step, self.groups, tile) if self.groups else None
            self.tasks[num_shared] = groups, _row_tasks(self.step, self.groups, tile)
        return self.tasks[num_shared]


class _Pool(NamedTuple):
    """A layer's blocks as bits, and their tensors, kept so that their ids stay valid."""

    cache: LayerCache
    key: npt.NDArray[np.generic]
    value: npt.NDArray[np.generic]


class CpuBackend:
    """Attention and sampling in float32, bfloat16 and float16; see the module docstring."""

    preferred_cache = PREFERRED_CACHE  # where compiled kernels are kept if that folder can be written to

    def __init__(self) -> None:
        self._reference = ReferenceBackend()
        self._pools: dict[int, _Pool] = {}
        self._scratch: dict[tuple[np.dtype[Any], int, int], tuple[Bits, ...]] = {}
        self._num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(self._num_threads)
        torch.set_num_threads(self._num_threads)  # starting numba set the shared OpenMP runtime to all cores

    @property
    def cache(self) -> Path | None:
        """Return the folder in which compiled kernels are kept; None if every process compiles them again."""
        path = attend_tasks.stats.cache_path  # of numba's subfolder for this package
        return None if path is None else Path(path).parent

    def prepare(self, step: AttentionStep) -> _Prepared:
        """Select the groups that are worth sharing, for all layers."""
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
        group_tasks, row_tasks = prepared.tasks_for(num_shared)
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
                np.float32(options.scale / math.log(2)),  # for exponents to the base 2
                state,
                as_bits(output),
                prepared.num_threads,
                tile_address(pool.key.dtype),
                *self._scratch_for(pool.key.dtype, num_shared, query.shape[2]),
            )
        return output

    def warm_up(self, num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Attend and sample for one token of such a model, so that every kernel is compiled or read from disk.

        May run in a background thread: it starts no threads and keeps no blocks.
        """
        numba.set_num_threads(1)  # for this thread only
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
        """Return a layer's blocks as arrays, converted once: the conversion is slow enough to matter in every step."""
        if id(cache.key) not in self._pools:
            self._pools[id(cache.key)] = _Pool(cache, as_bits(cache.key), as_bits(cache.value))
        return self._pools[id(cache.key)]

    def _scratch_for(self, dtype: np.dtype[Any], num_shared: int, size: int) -> tuple[Bits, ...]:
        tile = (dtype, num_shared, size)
        if tile not in self._scratch:
            self._scratch[tile] = scratch(dtype, num_shared, size, self._num_threads)
        return self._scratch[tile]

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """See `contract.SamplingBackend`."""
        return sampling.sample(logits, rows, self._num_threads)


def _saved_tokens(group: BlockGroup, block_size: int) -> int:
    return (group.stop - group.start - 1) * group.num_blocks * block_size


def _needs_reference(step: AttentionStep, key: Tensor, value: Tensor, options: AttentionOptions) -> bool:
    window = options.sliding_window
    return (
        options.soft_cap is not None
        or options.sinks is not None
        or (window is not None and max(step.seq_lens) > window)
        or options.scale <= 0  # the maximum is taken before scores are scaled
        or key.shape[-1] != value.shape[-1]
        or key.shape[-1] * key.itemsize % 4 != 0  # not a whole number of 32-bit words
        or key.shape[-1] * key.itemsize < 4 * LANES  # smaller than a vector
    )


def _group_tasks(step: AttentionStep, groups: list[BlockGroup], tile: int) -> _Tasks:
    """Return the tasks of each group's queries against its shared blocks, without a mask."""
    first_rows, stop_rows, num_blocks = np.array(groups, np.int64).T
    starts = np.array(step.query_starts)
    group, query, num_queries = _tiles(starts[first_rows], starts[stop_rows], tile)
    num_tokens = num_blocks[group] * step.block_size
    return _tasks(query, num_queries, first_rows[group], 0, num_tokens, num_tokens, False, False)


def _row_tasks(step: AttentionStep, groups: list[BlockGroup], tile: int) -> _Tasks:
    """Return the tasks of each row's queries against its own blocks, with a causal mask."""
    first_own = np.zeros(step.num_rows, np.int64)
    for group in groups:
        first_own[group.start : group.stop] = group.num_blocks * step.block_size
    starts = np.array(step.query_starts)
    row, query, num_queries = _tiles(starts[:-1], starts[1:], tile)
    first, length = first_own[row], np.array(step.seq_lens)[row]
    limit = length - (starts[row + 1] - query) + 1
    return _tasks(query, num_queries, row, first, length, limit, first > 0, True)


def _tiles(starts: _Ints, stops: _Ints, tile: int) -> tuple[_Ints, _Ints, _Ints]:
    """Cut ranges of queries into tiles; return each tile's range, first query and number of queries."""
    counts = -(-(stops - starts) // tile)
    ranges = np.repeat(np.arange(len(counts)), counts)
    queries = (starts - (np.cumsum(counts) - counts) * tile)[ranges] + np.arange(len(ranges)) * tile
    return ranges, queries, np.minimum(stops[ranges] - queries, tile)


def _tasks(*columns: npt.ArrayLike) -> _Tasks:
    """Return tasks from their columns in the order of `pool.py`."""
    rows = np.empty((len(np.asarray(columns[0])), len(columns)), np.int64)
    for index, column in enumerate(columns):
        rows[:, index] = column
    num_queries, start = rows[:, NUM_QUERIES], rows[:, START]
    stop = np.minimum(rows[:, STOP], rows[:, LIMIT] + num_queries - 1)
    # Transposing a key and interleaving its value costs about as much as two queries.
    costs = (stop - start + _TASK_COST) * (num_queries + 2)
    return _Tasks(rows, np.concatenate([[0], np.cumsum(costs)]).astype(np.float64))
