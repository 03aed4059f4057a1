"""The CPU backend: a step cut into tasks for the compiled kernel over pages (`cpu_pages.py`).

The queries of all rows of a prefix group meet the group's shared blocks together, in whole tiles; what is left of a row
(the one query of a decode, or a prefill chunk, against the row's own blocks) goes on from there. Nothing is gathered,
padded or merged apart. Layers with a window shorter than a row, a soft cap, sinks, different head sizes of K and V, or
heads of less than 64 bytes are computed by the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen_kernels import cpu_pages, cpu_sampling
from batchgen_kernels.contract import AttentionOptions, AttentionStep, BlockGroup, LayerCache
from batchgen_kernels.cpu_pages import as_bits
from batchgen_kernels.reference import ReferenceBackend
from batchgen_kernels.sampling import Chosen, SamplingRows
from batchgen_kernels.vector import LANES

_MIN_SAVED_TOKENS = 256  # (rows - 1) * shared tokens: below this, reading them once does not pay for a task of its own
_TASK_COST = 16  # of beginning and ending a tile, in keys


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Rows of `cpu_pages` task columns, and the running sum of their costs [tasks + 1]."""

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
            tile = max(cpu_pages.TILE_ROWS // num_shared, 1)
            groups = [task for group in self.groups for task in _group_tasks(self.step, group, tile)]
            rows = list(_row_tasks(self.step, self.groups, tile))
            self.tasks[num_shared] = _tasks(groups) if groups else None, _tasks(rows)
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
        cpu_pages.write_rows(as_bits(key), pool.key, slots)
        cpu_pages.write_rows(as_bits(value), pool.value, slots)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        group_tasks, row_tasks = prepared.of(query.shape[1] // key.shape[1])
        state = np.empty((*query.shape[:2], query.shape[2] + 2) if group_tasks else (0, 0, 0), np.float32)
        for tasks in (group_tasks, row_tasks) if group_tasks else (row_tasks,):
            assert tasks is not None
            cpu_pages.attend_tasks(
                as_bits(query),
                pool.key,
                pool.value,
                np.ascontiguousarray(step.block_tables.numpy()),
                tasks.rows,
                tasks.costs,
                np.float32(options.scale),
                state,
                as_bits(output),
                prepared.num_threads,
                cpu_pages.tile_of(as_bits(query).dtype),
            )
        return output

    def _pool(self, cache: LayerCache) -> _Pool:
        """Of every layer once: looking at a tensor's numbers costs more than it seems, step after step."""
        if id(cache.key) not in self._pools:
            self._pools[id(cache.key)] = _Pool(cache, as_bits(cache.key), as_bits(cache.value))
        return self._pools[id(cache.key)]

    def choose(self, logits: Tensor, rows: SamplingRows | None) -> Chosen:
        """See `sampling.SamplingBackend`."""
        return cpu_sampling.choose(logits, rows, self._num_threads)


def _saved_tokens(group: BlockGroup, block_size: int) -> int:
    return (group.stop - group.start - 1) * group.num_blocks * block_size


def _needs_reference(step: AttentionStep, key: Tensor, value: Tensor, options: AttentionOptions) -> bool:
    window = options.sliding_window
    return (
        options.soft_cap is not None
        or options.sinks is not None
        or (window is not None and max(step.seq_lens) > window)
        or key.shape[-1] != value.shape[-1]
        or key.shape[-1] * key.itemsize % 4 != 0  # not whole words
        or key.shape[-1] * key.itemsize < 4 * LANES  # less than a vector
    )


def _group_tasks(step: AttentionStep, group: BlockGroup, tile: int) -> Iterator[list[int]]:
    """A group's queries against its shared blocks, which all of them see whole."""
    num_tokens = group.num_blocks * step.block_size
    stop = step.query_starts[group.stop]
    for query in range(step.query_starts[group.start], stop, tile):
        yield [query, min(stop - query, tile), group.start, 0, num_tokens, num_tokens, False, False]


def _row_tasks(step: AttentionStep, groups: list[BlockGroup], tile: int) -> Iterator[list[int]]:
    """Each row's queries against its own blocks, each up to itself."""
    first_own = [0] * step.num_rows
    for group in groups:
        first_own[group.start : group.stop] = [group.num_blocks * step.block_size] * (group.stop - group.start)
    for row, (first, length) in enumerate(zip(first_own, step.seq_lens, strict=True)):
        start, stop = step.query_starts[row], step.query_starts[row + 1]
        for query in range(start, stop, tile):
            limit = length - (stop - query) + 1
            yield [query, min(stop - query, tile), row, first, length, limit, first > 0, True]


def _tasks(tasks: list[list[int]]) -> _Tasks:
    rows = np.array(tasks, np.int64)
    num_queries, start = rows[:, cpu_pages.NUM_QUERIES], rows[:, cpu_pages.START]
    stop = np.minimum(rows[:, cpu_pages.STOP], rows[:, cpu_pages.LIMIT] + num_queries - 1)
    # Turning a key into words costs about as much as two queries.
    costs = (stop - start + _TASK_COST) * (num_queries + 2)
    return _Tasks(rows, np.concatenate([[0], np.cumsum(costs)]).astype(np.float64))
