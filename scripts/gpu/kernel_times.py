"""Times of one attention layer on a device, as shares of its limits. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from batchgen_kernels import AttentionOptions, AttentionStep, BlockGroup, LayerCache
from batchgen_kernels.triton import TritonBackend
from scripts.gpu.machine import Machine


def time_decode(machine: Machine, _: float) -> dict[str, Any]:
    """Time decode attention as the engine launches it."""
    return _decode(machine, machine.time)


def time_decode_graph(machine: Machine, _: float) -> dict[str, Any]:
    """Time the same launches replayed from a CUDA graph."""
    return _decode(machine, machine.time_graph)


def _decode(machine: Machine, timer: Callable[[Callable[[], object]], float]) -> dict[str, Any]:
    figures = {}
    _, kv_heads, size = machine.scale.kernel_heads
    for batch in machine.scale.batches:
        for context in machine.scale.contexts:
            seconds = timer(_attend(machine, batch, 1, context - 1))
            least = batch * context * kv_heads * size * 2 * machine.dtype.itemsize / machine.limits.bandwidth
            figures[f"{batch} rows of {context}: us"] = seconds * 1e6
            figures[f"{batch} rows of {context}: share of bandwidth"] = least / seconds
    return figures


def time_prefill(machine: Machine, _: float) -> dict[str, Any]:
    """Time the attention of one chunk, at the start of a prompt and after another chunk."""
    figures = {}
    heads, _kv_heads, size = machine.scale.kernel_heads
    chunk = machine.scale.chunk
    for before in (0, chunk):
        seconds = machine.time(_attend(machine, 1, chunk, before))
        least = 4 * heads * size * (chunk * before + chunk * (chunk + 1) / 2) / machine.limits.flops
        figures[f"{chunk} tokens after {before}: us"] = seconds * 1e6
        figures[f"{chunk} tokens after {before}: share of products"] = least / seconds
    return figures


def _attend(machine: Machine, num_rows: int, queries: int, before: int) -> Callable[[], Tensor]:
    """Prepare a layer for equal rows; a call attends all of them."""
    heads, kv_heads, size = machine.scale.kernel_heads
    step = paged_step(num_rows, queries, before, block_size=16, device=machine.device)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=machine.dtype, device=machine.device)

    cache = LayerCache(*(tensor(step.block_tables.numel(), kv_heads, step.block_size, size) for _ in range(2)))
    query, key, value = (tensor(num_rows * queries, n, size) for n in (heads, kv_heads, kv_heads))
    backend, options = TritonBackend(), AttentionOptions(scale=size**-0.5)
    prepared = backend.prepare(step)
    return lambda: backend.attend(query, key, value, cache, prepared, options)


def paged_step(
    num_rows: int, queries: int, before: int, *, block_size: int, device: torch.device, num_shared_blocks: int = 0
) -> AttentionStep:
    """Make a step of equal rows with blocks all over the pool; all block tables begin with the shared blocks."""
    length, num_blocks = before + queries, -(-(before + queries) // block_size)
    tables = torch.randperm(num_rows * num_blocks, device=device).view(num_rows, num_blocks)
    tables[:, :num_shared_blocks] = tables[0, :num_shared_blocks].clone()
    positions = torch.arange(before, length, device=device)
    slots = (tables[:, positions // block_size] * block_size + positions % block_size).flatten()
    starts = [row * queries for row in range(num_rows + 1)]
    groups = [BlockGroup(0, num_rows, num_shared_blocks)] if num_shared_blocks else []
    return AttentionStep(slots, tables, starts, [length] * num_rows, groups, block_size)
