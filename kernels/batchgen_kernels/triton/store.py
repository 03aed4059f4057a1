"""Write the K and V of a step to their slots, one program a token for all its KV heads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from batchgen_kernels.contract import LayerCache


@triton.jit
def _store_token(
    source_ptr: tl.tensor,
    pool_ptr: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    token: tl.tensor,
    slot: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    heads = tl.arange(0, HEADS_TILE)[:, None]
    dims = tl.arange(0, TILE)[None, :]
    mask = (heads < NUM_HEADS) & (dims < SIZE)
    values = tl.load(source_ptr + token * token_stride + heads * head_stride + dims, mask=mask)
    rows = (slot // BLOCK_SIZE * NUM_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE  # int64, as slot is
    tl.store(pool_ptr + rows * SIZE + dims, values, mask=mask)


@triton.jit
def store_kernel(
    key_ptr: tl.tensor,  # [T, NUM_HEADS, KEY_SIZE]
    value_ptr: tl.tensor,  # [T, NUM_HEADS, VALUE_SIZE]
    key_pool_ptr: tl.tensor,
    value_pool_ptr: tl.tensor,
    slots_ptr: tl.tensor,  # [T] int64
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Store one token on the grid (T). A negative slot is padding, which is not stored."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    _store_token(
        key_ptr, key_pool_ptr, key_token_stride, key_head_stride, token, slot,
        NUM_HEADS, HEADS_TILE, KEY_SIZE, KEY_TILE, BLOCK_SIZE,
    )  # fmt: skip
    _store_token(
        value_ptr, value_pool_ptr, value_token_stride, value_head_stride, token, slot,
        NUM_HEADS, HEADS_TILE, VALUE_SIZE, VALUE_TILE, BLOCK_SIZE,
    )  # fmt: skip


def store_kv(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Write key and value [T, num_kv_heads, head size] to slots [T] int64, like `contract.write_kv`.

    A token with slot -1 is padding, which is not stored.
    """
    _, num_heads, block_size, key_size = cache.key.shape
    value_size = cache.value.shape[-1]
    assert key.stride(-1) == value.stride(-1) == 1, f"{key.stride()} {value.stride()}"
    assert cache.key.is_contiguous(), cache.key.stride()
    assert cache.value.is_contiguous(), cache.value.stride()
    assert len(key) == len(value) == len(slots), f"{len(key)} and {len(value)} tokens into {len(slots)} slots"
    assert key.shape[1:] == (num_heads, key_size), f"{key.shape} into {cache.key.shape}"
    store_kernel[(len(slots),)](
        key, value, cache.key, cache.value, slots, *key.stride()[:2], *value.stride()[:2],
        NUM_HEADS=num_heads, HEADS_TILE=triton.next_power_of_2(num_heads),
        KEY_SIZE=key_size, KEY_TILE=triton.next_power_of_2(key_size),
        VALUE_SIZE=value_size, VALUE_TILE=triton.next_power_of_2(value_size),
        BLOCK_SIZE=block_size, num_warps=4,
    )  # fmt: skip
