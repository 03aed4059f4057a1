"""Random steps over a paged pool whose unwritten slots are NaN, and their expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from batchgen_kernels import (
    AttentionBackend,
    AttentionOptions,
    AttentionStep,
    BlockGroup,
    LayerCache,
    ReferenceBackend,
)


@dataclass(frozen=True)
class Case:
    """One layer of one step."""

    step: AttentionStep
    query: Tensor
    key: Tensor
    value: Tensor
    cache: LayerCache  # NaN in all slots of no earlier token
    options: AttentionOptions

    def run(self, backend: AttentionBackend, prepared: Any = None) -> Tensor:
        """Return the output; the pool is not changed."""
        cache = LayerCache(self.cache.key.clone(), self.cache.value.clone())
        prepared = backend.prepare(self.step) if prepared is None else prepared
        return backend.attend(self.query, self.key, self.value, cache, prepared, self.options)

    @property
    def truth(self) -> Tensor:
        """Return the ground truth: the output of the reference in float32."""
        cache = LayerCache(self.cache.key.float(), self.cache.value.float())
        return replace(self.with_inputs(Tensor.float), cache=cache).run(ReferenceBackend())

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> Case:
        """Return the case with query, key and value changed."""
        return replace(self, query=change(self.query), key=change(self.key), value=change(self.value))


def make_case(
    rows: Sequence[tuple[int, int]],
    heads: tuple[int, int, int, int] = (4, 2, 16, 16),
    block_size: int = 8,
    groups: Sequence[BlockGroup] = (),
    dtype: torch.dtype = torch.float32,
    seed: int = 42,
    **options: Any,
) -> Case:
    """Return a case of `rows` (queries, tokens before them) and `heads` (query heads, KV heads, K and V head size)."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads, key_size, value_size = heads
    lengths = [queries + before for queries, before in rows]
    tables = _block_tables(lengths, block_size, groups, generator)
    num_blocks = sum(-(-length // block_size) for length in lengths) + 3
    tokens = [(r, before + q) for r, (queries, before) in enumerate(rows) for q in range(queries)]
    slots = [int(tables[r, p // block_size]) * block_size + p % block_size for r, p in tokens]
    starts = [sum(queries for queries, _ in rows[:r]) for r in range(len(rows) + 1)]

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    cache = LayerCache(
        random(num_blocks, num_kv_heads, block_size, key_size), random(num_blocks, num_kv_heads, block_size, value_size)
    )
    _poison(cache, tables, lengths, slots, block_size)
    return Case(
        AttentionStep(torch.tensor(slots), tables, starts, lengths, list(groups), block_size),
        random(len(slots), num_heads, key_size),
        random(len(slots), num_kv_heads, key_size),
        random(len(slots), num_kv_heads, value_size),
        cache,
        AttentionOptions(scale=key_size**-0.5, **options),
    )


def _block_tables(
    lengths: Sequence[int], block_size: int, groups: Sequence[BlockGroup], generator: torch.Generator
) -> Tensor:
    """Return tables of random blocks; the rows of a group begin with the same blocks."""
    counts = [-(-length // block_size) for length in lengths]
    pool = iter(torch.randperm(sum(counts) + 3, generator=generator).tolist())
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.int64)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([next(pool) for _ in range(count)])
    for group in groups:
        tables[group.start : group.stop, : group.num_blocks] = tables[group.start, : group.num_blocks].clone()
    return tables


def _poison(cache: LayerCache, tables: Tensor, lengths: Sequence[int], slots: Sequence[int], block_size: int) -> None:
    """Write NaN to every slot without an earlier token."""
    is_free = torch.ones(len(cache.key), block_size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        positions = torch.arange(length)
        is_free[tables[row, positions // block_size], positions % block_size] = False
    is_free.view(-1)[torch.tensor(slots)] = True
    for pool in cache:
        pool.transpose(1, 2)[is_free] = torch.nan
