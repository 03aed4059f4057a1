"""TritonBackend: the contract on a GPU. Plans a step on the host once, then only launches kernels.

`attend` launches, in this order: store, up to three lists of items (decode, shared, prefill), merge. It does not read
from the device. The grids come from the capacity of the lists, not from their contents, so a CUDA graph captured with a
step of `prepare_for_replay` may be replayed after `update` has written another step's items into the same lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton import knobs

from batchgen_kernels import reference
from batchgen_kernels.cache import choose_cache_folder
from batchgen_kernels.contract import AttentionOptions, AttentionStep, LayerCache, SampledTokens, SamplingRows
from batchgen_kernels.triton.attention import Parts, QueryTables, attend_items
from batchgen_kernels.triton.launch import Launch, LaunchKey, arch_of, constants, launches
from batchgen_kernels.triton.merge import merge_parts
from batchgen_kernels.triton.sample import sample
from batchgen_kernels.triton.store import store_kv
from batchgen_kernels.triton.work import ITEM_FIELDS, Capacity, Tiling, Work, decode_capacity, plan_work

_INTERPRETER_SMS = 4


class LayerShape(NamedTuple):
    """The shape of a layer, as planning needs it. In most models all layers have the same."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    block_size: int


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A `Work` on the device, in lists of size `capacity` that are views of one buffer, so that one copy fills them."""

    capacity: Capacity
    buffer: Tensor
    items: dict[str, Tensor]  # regime -> [capacity, ITEM_FIELDS]
    positions: Tensor
    partial_starts: Tensor
    merged_tokens: Tensor

    @classmethod
    def allocate(cls, capacity: Capacity, device: torch.device) -> DeviceWork:
        sizes = _section_sizes(capacity)
        buffer = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        decode, shared, prefill, positions, partial_starts, merged = torch.split(buffer, sizes)
        items = {"decode": decode, "shared": shared, "prefill": prefill}
        return cls(
            capacity,
            buffer,
            {regime: section.view(-1, ITEM_FIELDS) for regime, section in items.items()},
            positions,
            partial_starts,
            merged[: capacity.merged_tokens],
        )

    def write(self, work: Work) -> None:
        """Replace the contents, asynchronously on a GPU."""
        assert all(size <= most for size, most in zip(work.size, self.capacity, strict=True)), (
            f"a step of {work.size} does not fit {self.capacity}"
        )
        # A new host buffer each time: torch reuses pinned memory when its copy is done.
        host = torch.zeros(len(self.buffer), dtype=torch.int32, pin_memory=self.buffer.is_cuda)
        sections = np.split(host.numpy(), np.cumsum(_section_sizes(self.capacity))[:-1])
        sections[-1][:] = -1  # padding that the kernels skip, like an item of no queries
        for section, values in zip(sections, work, strict=True):
            section[: values.size] = values.ravel()
        self.buffer.copy_(host, non_blocking=True)


def _section_sizes(capacity: Capacity) -> list[int]:
    """Return the elements of each section of the buffer, rounded up so that every section begins on 32 bytes."""
    items = [count * ITEM_FIELDS for count in capacity[:3]]
    return [-(-size // 8) * 8 for size in (*items, capacity.tokens, capacity.tokens + 1, capacity.merged_tokens)]


@dataclass(slots=True)
class Prepared:
    """A step on the device. Its work is planned at the first layer of each shape, for all layers of that shape."""

    step: AttentionStep
    min_saved_bytes: float | None
    is_replayable: bool = False  # with lists large enough for any decode step in the same tensors
    work: dict[LayerShape, DeviceWork] = field(default_factory=dict)

    def work_of(self, shape: LayerShape) -> DeviceWork:
        """Return the work of layers of this shape."""
        if shape not in self.work:
            plan = self._plan(shape)
            self.work[shape] = DeviceWork.allocate(self._capacity(shape) or plan.size, self.step.slot_mapping.device)
            self.work[shape].write(plan)
        return self.work[shape]

    def update(self, step: AttentionStep) -> None:
        """See `contract.PreparedForReplay`."""
        self.step = step
        for shape, work in self.work.items():
            work.write(self._plan(shape))

    def _plan(self, shape: LayerShape) -> Work:
        capacity, tiling = self._capacity(shape), self._tiling(shape)
        return plan_work(self.step, tiling if capacity is None else tiling._replace(max_parts=capacity.partials))

    def _capacity(self, shape: LayerShape) -> Capacity | None:
        if not self.is_replayable:
            return None
        return decode_capacity(len(self.step.slot_mapping), self._tiling(shape).num_items)

    def _tiling(self, shape: LayerShape) -> Tiling:
        device = self.step.slot_mapping.device
        return tiling_of(shape, _launches(shape, device), device, self.min_saved_bytes)


def use_writable_cache() -> None:
    """Have Triton keep compiled kernels in another folder of this user if it cannot write to its own."""
    preferred = Path(knobs.cache.dir)
    folder = choose_cache_folder(preferred, "triton")
    if folder is not None and folder != preferred:
        knobs.cache.dir = str(folder)


class TritonBackend:
    """float32, bfloat16 and float16 on a GPU; float32 and float16 in the interpreter.

    `min_saved_bytes` overrides the constants that decide about sharing: -inf shares all that it can, inf nothing.
    """

    def __init__(self, min_saved_bytes: float | None = None) -> None:
        self._min_saved_bytes = min_saved_bytes
        use_writable_cache()

    def prepare(self, step: AttentionStep) -> Prepared:
        """Return the step unplanned; its tensors are used, not copied."""
        return Prepared(step, self._min_saved_bytes)

    def prepare_for_replay(self, step: AttentionStep) -> Prepared:
        """See `contract.ReplayBackend`. Every layer must have run once before a capture, which allocates its lists."""
        assert step.num_rows <= len(step.slot_mapping), "a step of one query a row"
        return Prepared(step, self._min_saved_bytes, is_replayable=True)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> Tensor:
        """See `contract.AttentionBackend`. The outputs of padding tokens are uninitialised."""
        shape = _shape(query, cache)
        work = prepared.work_of(shape)
        store_kv(key, value, cache, prepared.step.slot_mapping)
        output = query.new_empty(*query.shape[:2], shape.value_size)
        num_partials = work.capacity.partials
        parts = Parts(
            query.new_empty(num_partials, shape.num_heads, shape.value_size, dtype=torch.float32),
            query.new_empty(num_partials, shape.num_heads, dtype=torch.float32),
        )
        query_tables = QueryTables(work.positions, work.partial_starts, prepared.step.block_tables)
        for regime, launch in _launches(shape, query.device).items():
            if len(work.items[regime]):
                attend_items(query, cache, work.items[regime], query_tables, parts, output, options, launch)
        if len(work.merged_tokens):
            merge_parts(parts.output, parts.lse, work.merged_tokens, work.partial_starts, output)
        return output

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """See `contract.SamplingBackend`."""
        return reference.sample(logits, None) if rows is None else sample(logits, rows)


def _shape(query: Tensor, cache: LayerCache) -> LayerShape:
    _, num_kv_heads, block_size, key_size = cache.key.shape
    return LayerShape(query.shape[1], num_kv_heads, key_size, cache.value.shape[-1], query.dtype, block_size)


def _launches(shape: LayerShape, device: torch.device) -> dict[str, Launch]:
    """Return the table's launches, with tiles that hold all heads of one query."""
    head_size, heads_per_kv = max(shape.key_size, shape.value_size), shape.num_heads // shape.num_kv_heads
    key = LaunchKey(arch_of(device), head_size, heads_per_kv, str(shape.dtype).removeprefix("torch."), shape.block_size)
    return launches(key)


def tiling_of(
    shape: LayerShape, regimes: Mapping[str, Launch], device: torch.device, min_saved_bytes: float | None
) -> Tiling:
    """Return how steps are cut into items for layers of this shape by the launches of the regimes."""
    known = constants(arch_of(device))
    heads_per_kv = shape.num_heads // shape.num_kv_heads
    queries = {regime: launch.block_m // heads_per_kv for regime, launch in regimes.items()}
    num_programs = _num_sms(device) * known.programs_per_sm
    return Tiling(
        decode_queries=queries["decode"],
        shared_queries=queries["shared"],
        prefill_queries=queries["prefill"],
        min_split=known.min_split,
        num_items=max(num_programs // shape.num_kv_heads, 1),
        token_bytes=shape.num_kv_heads * (shape.key_size + shape.value_size) * shape.dtype.itemsize,
        partial_bytes=shape.num_heads * (shape.value_size + 1) * 4,
        min_saved_bytes=known.bandwidth * known.shared_overhead if min_saved_bytes is None else min_saved_bytes,
    )


def _num_sms(device: torch.device) -> int:
    if device.type == "cpu":
        return _INTERPRETER_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count
