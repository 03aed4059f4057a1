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
    """Bytes of one block in all layers. Blocks outside a sliding window are kept, so a window saves nothing."""
    return block_size * dtype.itemsize * sum(layer.elements_per_token for layer in layers)


def step_bytes(hidden_size: int, vocab_size: int, num_logits: int, num_tokens: int, dtype: torch.dtype) -> int:
    """What a step needs beside weights and KV, on the safe side.

    Of the logits at every place where they are wanted the model's own, a float32 copy, its logprobs, and three more
    where it is sampled (a filter's or a penalty's copy among them); of every token 32 activations as wide as the model
    (the widest product of a layer is 3 to 8 times that, and a few are alive at once).
    """
    return num_logits * vocab_size * (dtype.itemsize + 5 * 4) + num_tokens * hidden_size * 32 * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many blocks the pool gets, and why."""

    num_blocks: int
    block_bytes: int
    reason: str  # for the report: what limited it


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
    """The pool of a job: what it can ever use, within `memory_fraction` of the available memory.

    `num_blocks` from the job file is taken as it is when it fits. Raises CapacityError naming the KV pool when the
    memory left beside the model does not hold it.
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
            f"the model fits, but beside it not one KV block does ({format_mib(size)} needed, "
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
    """One pair of tensors a layer, shaped as `batchgen_kernels.contract` says. Contents are undefined."""

    def empty(layer: AttentionLayer, head_size: int) -> torch.Tensor:
        return torch.empty(num_blocks, layer.num_kv_heads, block_size, head_size, dtype=dtype, device=device)

    return [LayerCache(empty(layer, layer.key_head_size), empty(layer, layer.value_head_size)) for layer in layers]
