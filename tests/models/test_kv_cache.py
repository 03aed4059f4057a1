"""How many blocks a pool gets: a layer of 2 KV heads of 8, so 32 elements a token, 64 bytes in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchgen.errors import CapacityError
from batchgen.models.kv_cache import PoolSize, allocate, block_bytes, size_pool, step_bytes
from batchgen.models.probe import AttentionLayer

LAYERS = [AttentionLayer("a", 4, 2, 8, 8, None)] * 2
BLOCK_BYTES = 16 * 2 * 32 * 2  # 16 tokens, 2 layers, 32 elements, 2 bytes


def pool(**given: Any) -> PoolSize:
    settings: dict[str, Any] = {
        "num_blocks": None,
        "num_blocks_needed": 10,
        "available_bytes": 100 * BLOCK_BYTES,
        "memory_fraction": 0.5,
    }
    return size_pool(LAYERS, 16, torch.bfloat16, **{**settings, **given})


def test_bytes_of_a_block() -> None:
    assert block_bytes(LAYERS, 16, torch.bfloat16) == BLOCK_BYTES
    assert block_bytes(LAYERS, 16, torch.float32) == 2 * BLOCK_BYTES


def test_a_small_job_gets_all_blocks_it_can_use() -> None:
    assert pool().num_blocks == 10
    assert pool().block_bytes == BLOCK_BYTES


def test_a_large_job_gets_its_share_of_the_memory() -> None:
    assert (pool(num_blocks_needed=1000).num_blocks, pool(num_blocks_needed=1000).reason) == (50, "memory")


def test_num_blocks_of_the_job_file_is_used_if_it_fits() -> None:
    assert pool(num_blocks=7).num_blocks == 7
    with pytest.raises(CapacityError, match=r"engine\.num_blocks: 51 KV blocks .*\(50 blocks\)"):
        pool(num_blocks=51)


def test_no_memory_beside_the_model_is_refused() -> None:
    with pytest.raises(CapacityError, match="the model fits, but not a single KV block fits beside it"):
        pool(available_bytes=BLOCK_BYTES)


def test_tensors_have_the_shapes_of_the_contract() -> None:
    layers = [AttentionLayer("a", 4, 2, 8, 6, None), AttentionLayer("b", 4, 1, 8, 8, None)]
    caches = allocate(layers, 3, 16, torch.float32, torch.device("cpu"))
    assert [tuple(tensor.shape) for tensor in caches[0]] == [(3, 2, 16, 8), (3, 2, 16, 6)]
    assert [tuple(tensor.shape) for tensor in caches[1]] == [(3, 1, 16, 8), (3, 1, 16, 8)]


def test_a_step_needs_room_for_its_logits_and_activations() -> None:
    # 2 rows of 100 logits of 2 + 5 * 4 bytes each; 10 tokens of 32 * 8 activations of 2 bytes
    assert step_bytes(8, 100, 2, 10, torch.bfloat16) == 2 * 100 * 22 + 10 * 8 * 64
