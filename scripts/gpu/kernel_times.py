"""Times of one attention layer on a device, as shares of its limits. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from batchgen_kernels import AttentionOptions, AttentionStep, LayerCache
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
            seconds = timer(_attend(machine, [(1, context - 1)] * batch))
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
        seconds = machine.time(_attend(machine, [(chunk, before)]))
        least = 4 * heads * size * (chunk * before + chunk * (chunk + 1) / 2) / machine.limits.flops
        figures[f"{chunk} tokens after {before}: us"] = seconds * 1e6
        figures[f"{chunk} tokens after {before}: share of products"] = least / seconds
    return figures


def _attend(machine: Machine, rows: Sequence[tuple[int, int]], block_size: int = 16) -> Callable[[], Tensor]:
    """Prepare a layer for rows of (queries, tokens before them) of one length, with their blocks all over the pool."""
    heads, kv_heads, size = machine.scale.kernel_heads
    queries, before = rows[0]
    length, count = queries + before, -(-(queries + before) // block_size)
    tables = torch.randperm(len(rows) * count, device=machine.device).view(len(rows), count)
    positions = torch.arange(before, length, device=machine.device)
    slots = (tables[:, positions // block_size] * block_size + positions % block_size).flatten()

    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=machine.dtype, device=machine.device)

    cache = LayerCache(*(tensor(tables.numel(), kv_heads, block_size, size) for _ in range(2)))
    starts = [queries * row for row in range(len(rows) + 1)]
    step = AttentionStep(slots, tables, starts, [length] * len(rows), [], block_size)
    query, key, value = (tensor(len(slots), n, size) for n in (heads, kv_heads, kv_heads))
    backend, options = TritonBackend(), AttentionOptions(scale=size**-0.5)
    prepared = backend.prepare(step)
    return lambda: backend.attend(query, key, value, cache, prepared, options)
