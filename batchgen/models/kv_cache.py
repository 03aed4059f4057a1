"""KVCache: the tensors of the block pool, and how many blocks fit. Knows sizes in bytes; knows no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from batchgen.errors import CapacityError
from batchgen.models.probe import AttentionLayer
from batchgen.units import format_gib, format_mib
from batchgen_kernels import LayerCache


def block_bytes(layers: Sequence[AttentionLayer], block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block in all layers. Blocks outside a sliding window are kept, so a window saves none."""
    return block_size * dtype.itemsize * sum(layer.elements_per_token for layer in layers)


def step_bytes(hidden_size: int, vocab_size: int, num_logits: int, num_tokens: int, dtype: torch.dtype) -> int:
    """Return an upper estimate of the bytes that a step needs beside weights and KV.

    For every row of logits: the model's own, a float32 copy, its logprobs, and three more copies for sampling (one of
    them a filter's or a penalty's). For every token: 32 activations as wide as the model (the widest product of a
    layer is 3 to 8 times that, and a few are alive at once).
    """
    return num_logits * vocab_size * (dtype.itemsize + 5 * 4) + num_tokens * hidden_size * 32 * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many blocks the pool gets, and why."""

    num_blocks: int
    block_bytes: int
    reason: str  # what limited it, for the report


def size_pool(
    layers: Sequence[AttentionLayer],
    block_size: int,
    dtype: torch.dtype,
    *,
    num_blocks: int | None,
    num_blocks_needed: int,
    available_bytes: int,
    memory_fraction: float,
) -> PoolSize:
    """Return the size of a job's pool: all that it can ever use, within `memory_fraction` of the available memory.

    `num_blocks` of the job file is used unchanged if it fits. Raises CapacityError if the memory left beside the model
    does not hold that many blocks, or not even one.
    """
    size = block_bytes(layers, block_size, dtype)
    num_fitting = int(available_bytes * memory_fraction) // size
    if num_blocks is not None and num_blocks > num_fitting:
        raise CapacityError(
            f"engine.num_blocks: {num_blocks} KV blocks take {format_gib(num_blocks * size)}, but "
            f"engine.memory_fraction {memory_fraction} of the memory left beside the model is "
            f"{format_gib(num_fitting * size)} ({num_fitting} blocks); lower engine.num_blocks"
        )
    if num_fitting == 0:
        raise CapacityError(
            f"the model fits, but not a single KV block fits beside it ({format_mib(size)} needed, "
            f"{format_mib(available_bytes * memory_fraction)} available); use a smaller model or another device"
        )
    if num_blocks is not None:
        return PoolSize(num_blocks, size, "engine.num_blocks")
    if num_blocks_needed <= num_fitting:
        return PoolSize(max(num_blocks_needed, 1), size, "what the job can use at once")
    return PoolSize(num_fitting, size, "memory")


def allocate(
    layers: Sequence[AttentionLayer], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Return uninitialised K and V tensors for each layer, shaped as `batchgen_kernels.contract` says."""

    def empty(layer: AttentionLayer, head_size: int) -> torch.Tensor:
        return torch.empty(num_blocks, layer.num_kv_heads, block_size, head_size, dtype=dtype, device=device)

    return [LayerCache(empty(layer, layer.key_head_size), empty(layer, layer.value_head_size)) for layer in layers]
