"""The attention kernel: one work item is a tile of stacked queries against a range of one row's tokens.

Prefill tiles, decode rows, ranges of a long row and the shared prefix of a group are all such items (`work.py`), so one
kernel computes them. The query heads of a KV head are rows of the tile. Knows the items; knows nothing of their choice.

The softmax is computed online in base 2 (FlashAttention, arXiv 2205.14135); blocks are read in place through the block
table (PagedAttention, arXiv 2309.06180). A query with several parts writes float32 partials, which `merge.py` merges.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from batchgen_kernels.contract import AttentionOptions, LayerCache
from batchgen_kernels.triton.launch import Launch

_LOG2E = 1.4426950408889634


@triton.jit
def _load_tokens(
    pool_ptr: tl.tensor,
    slots: tl.tensor,
    is_token: tl.tensor,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Load [tokens, TILE] of one pool; elements of no token or beyond SIZE are 0 and not read."""
    dims = tl.arange(0, TILE)
    pointers = pool_ptr + slots[:, None] * SIZE + dims[None, :]
    if MASKED or SIZE != TILE:
        tokens = tl.load(pointers, mask=is_token[:, None] & (dims < SIZE)[None, :], other=0.0)
    else:
        tokens = tl.load(pointers)
    return tokens


@triton.jit
def _attend_tiles(
    # the running softmax
    output: tl.tensor,  # [BLOCK_M, VALUE_TILE]
    best: tl.tensor,  # [BLOCK_M]
    total: tl.tensor,  # [BLOCK_M]
    # the queries
    query: tl.tensor,  # [BLOCK_M, KEY_TILE]
    positions: tl.tensor,  # [BLOCK_M]
    # the tokens: `[low, high)` of the row, in steps of BLOCK_N
    low: tl.tensor,
    high: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    table_ptr: tl.tensor,
    kv_head: tl.tensor,
    num_kv_heads: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    KEY_SIZE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the running softmax after these tokens. Without MASKED every query sees all, and BLOCK_N divides them."""
    for start in range(low, high, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)  # [BLOCK_N] positions of the tokens
        is_token = columns < high
        if MASKED:
            block_ids = tl.load(table_ptr + columns // BLOCK_SIZE, mask=is_token, other=0)
        else:
            block_ids = tl.load(table_ptr + columns // BLOCK_SIZE)
        # A pool may have more than 2^31 elements: convert to int64 before any product.
        slots = (block_ids.to(tl.int64) * num_kv_heads + kv_head) * BLOCK_SIZE + columns % BLOCK_SIZE
        keys = _load_tokens(key_ptr, slots, is_token, KEY_SIZE, KEY_TILE, MASKED)  # [BLOCK_N, KEY_TILE]
        values = _load_tokens(value_ptr, slots, is_token, VALUE_SIZE, VALUE_TILE, MASKED)  # [BLOCK_N, VALUE_TILE]
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale  # [BLOCK_M, BLOCK_N]
        if HAS_SOFT_CAP:
            scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))  # soft_cap * tanh, see `_scales`
        if MASKED:
            visible = is_token[None, :] & (columns[None, :] <= positions[:, None])
            if HAS_WINDOW:
                visible = visible & (columns[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
            # A weight of 0 does not cancel a non-finite value: set it to 0, and outputs of queries that see it to NaN.
            is_bad = tl.max(((values - values) != 0).to(tl.int32), 1) > 0  # [BLOCK_N]
            values = tl.where(is_bad[:, None], tl.zeros_like(values), values)
            sees_bad = tl.max((visible & is_bad[None, :]).to(tl.int32), 1) > 0  # [BLOCK_M]
            output = tl.where(sees_bad[:, None], float("nan"), output)
        new_best = tl.maximum(best, tl.max(scores, 1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)  # no key yet: -inf - -inf would be NaN
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weights, 1)
        output = tl.dot(weights.to(values.dtype), values, output * decay[:, None], input_precision="ieee")
        best = new_best
    return output, best, total


@triton.jit(do_not_specialize=["table_stride", "window"])
def attention_kernel(
    query_ptr: tl.tensor,  # [T, num_heads, KEY_SIZE], heads contiguous
    key_ptr: tl.tensor,  # the layer's pools, with the shapes in contract.py
    value_ptr: tl.tensor,
    output_ptr: tl.tensor,  # [T, num_heads, VALUE_SIZE]
    partial_ptr: tl.tensor,  # [partials, num_heads, VALUE_SIZE] float32
    lse_ptr: tl.tensor,  # [partials, num_heads] float32, base 2
    sinks_ptr: tl.tensor,  # [num_heads]
    items_ptr: tl.tensor,  # [items, ITEM_FIELDS] int32
    positions_ptr: tl.tensor,  # [T] int32
    partial_starts_ptr: tl.tensor,  # [T + 1] int32
    tables_ptr: tl.tensor,  # [rows, table_stride]
    table_stride: tl.tensor,
    query_stride: tl.tensor,
    head_stride: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    HEADS_PER_KV: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ITEM_FIELDS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Compute one item on the grid (items, KV heads). An item of 0 queries is padding of the list."""
    item_ptr = items_ptr + tl.program_id(0) * ITEM_FIELDS
    first_query = tl.load(item_ptr)
    num_queries = tl.load(item_ptr + 1)
    if num_queries == 0:
        return
    table_ptr = tables_ptr + tl.load(item_ptr + 2).to(tl.int64) * table_stride
    low = tl.load(item_ptr + 3)
    high = tl.load(item_ptr + 4)
    part = tl.load(item_ptr + 5)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)

    # Tile row m is query head m % HEADS_PER_KV of the item's token m // HEADS_PER_KV.
    rows = tl.arange(0, BLOCK_M)
    is_query = rows // HEADS_PER_KV < num_queries
    tokens = (first_query + rows // HEADS_PER_KV).to(tl.int64)
    heads = kv_head * HEADS_PER_KV + rows % HEADS_PER_KV
    output_rows = tokens * (num_kv_heads * HEADS_PER_KV) + heads
    positions = tl.load(positions_ptr + tokens, mask=is_query, other=0)
    key_dims = tl.arange(0, KEY_TILE)
    query = tl.load(
        query_ptr + (tokens * query_stride + heads * head_stride)[:, None] + key_dims[None, :],
        mask=is_query[:, None] & (key_dims < KEY_SIZE)[None, :],
        other=0.0,
    )

    # Tokens that no query sees are skipped; those that all queries see need no mask.
    first_position = tl.min(tl.where(is_query, positions, 2147483647))
    last_position = tl.max(positions)
    high = tl.minimum(high, last_position + 1)
    unmasked = low
    if HAS_WINDOW:
        low = tl.maximum(low, first_position - window + 1)
        all_see = tl.maximum(low, last_position - window + 1)
        unmasked = tl.minimum(low + (all_see - low + BLOCK_N - 1) // BLOCK_N * BLOCK_N, tl.maximum(low, high))
    masked = unmasked + tl.maximum(tl.minimum(high, first_position + 1) - unmasked, 0) // BLOCK_N * BLOCK_N

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # a key without a value: only the first part includes it
        sinks = tl.load(sinks_ptr + heads, mask=is_query, other=0.0).to(tl.float32) * 1.4426950408889634
        best = tl.where(part <= 0, sinks, best)
        total = tl.where(part <= 0, 1.0, total)
    output = tl.zeros([BLOCK_M, VALUE_TILE], tl.float32)
    if HAS_WINDOW:
        output, best, total = _attend_tiles(
            output, best, total, query, positions, low, unmasked, key_ptr, value_ptr, table_ptr, kv_head, num_kv_heads,
            scale, soft_cap, window, KEY_SIZE, KEY_TILE, VALUE_SIZE, VALUE_TILE, BLOCK_SIZE, BLOCK_N, HAS_SOFT_CAP,
            HAS_WINDOW, True,
        )  # fmt: skip
    output, best, total = _attend_tiles(
        output, best, total, query, positions, unmasked, masked, key_ptr, value_ptr, table_ptr, kv_head, num_kv_heads,
        scale, soft_cap, window, KEY_SIZE, KEY_TILE, VALUE_SIZE, VALUE_TILE, BLOCK_SIZE, BLOCK_N, HAS_SOFT_CAP,
        HAS_WINDOW, False,
    )  # fmt: skip
    output, best, total = _attend_tiles(
        output, best, total, query, positions, masked, high, key_ptr, value_ptr, table_ptr, kv_head, num_kv_heads,
        scale, soft_cap, window, KEY_SIZE, KEY_TILE, VALUE_SIZE, VALUE_TILE, BLOCK_SIZE, BLOCK_N, HAS_SOFT_CAP,
        HAS_WINDOW, True,
    )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # no key at all: output 0, lse -inf
    output = output / total[:, None]
    value_dims = tl.arange(0, VALUE_TILE)
    is_stored = is_query[:, None] & (value_dims < VALUE_SIZE)[None, :]
    if part < 0:
        pointers = output_ptr + output_rows[:, None] * VALUE_SIZE + value_dims[None, :]
        tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=is_stored)
    else:
        partials = tl.load(partial_starts_ptr + tokens, mask=is_query, other=0) + part
        partial_rows = partials.to(tl.int64) * (num_kv_heads * HEADS_PER_KV) + heads
        tl.store(partial_ptr + partial_rows[:, None] * VALUE_SIZE + value_dims[None, :], output, mask=is_stored)
        tl.store(lse_ptr + partial_rows, best + tl.log2(total), mask=is_query)


def attend_items(
    query: Tensor,
    cache: LayerCache,
    items: Tensor,
    query_tables: QueryTables,
    parts: Parts,
    output: Tensor,
    options: AttentionOptions,
    launch: Launch,
) -> None:
    """Compute one list of items [n, ITEM_FIELDS] into `output` [T, num_heads, value_head_size] or into `parts`.

    query [T, num_heads, key_head_size], its last dimension contiguous. Does not synchronise with the device.
    """
    _, num_heads, key_size = query.shape
    _, num_kv_heads, block_size, value_size = cache.value.shape
    assert query.stride(-1) == 1, query.stride()
    assert key_size == cache.key.shape[-1], f"{query.shape} on {cache.key.shape}"
    assert cache.key.is_contiguous(), cache.key.stride()
    assert cache.value.is_contiguous(), cache.value.stride()
    heads_per_kv = num_heads // num_kv_heads
    scale, soft_cap = _scales(options)
    attention_kernel[(len(items), num_kv_heads)](
        query, cache.key, cache.value, output, parts.output, parts.lse, options.sinks,
        items, query_tables.positions, query_tables.partial_starts, query_tables.block_tables,
        query_tables.block_tables.stride(0), query.stride(0), query.stride(1),
        scale, soft_cap, options.sliding_window or 0,
        HEADS_PER_KV=heads_per_kv,
        KEY_SIZE=key_size, KEY_TILE=tile_of(key_size), VALUE_SIZE=value_size, VALUE_TILE=tile_of(value_size),
        BLOCK_SIZE=block_size, ITEM_FIELDS=items.shape[1],
        HAS_SOFT_CAP=options.soft_cap is not None,
        HAS_WINDOW=options.sliding_window is not None,
        HAS_SINKS=options.sinks is not None,
        BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip


class QueryTables(NamedTuple):
    """The positions and block tables of a step's queries, on the device."""

    positions: Tensor  # [T] int32
    partial_starts: Tensor  # [T + 1] int32
    block_tables: Tensor  # [rows, max_blocks]


class Parts(NamedTuple):
    """The partial results of queries with several parts, for the merge."""

    output: Tensor  # [partials, num_heads, value_head_size] float32
    lse: Tensor  # [partials, num_heads] float32, base 2


def tile_of(head_size: int) -> int:
    """Return the tile size for a head: a power of two, at least 16, the smallest for a matrix product."""
    return max(16, int(triton.next_power_of_2(head_size)))


def _scales(options: AttentionOptions) -> tuple[float, float]:
    """Return the factor of the product of query and key, and the soft cap, for exponentials in base 2.

    cap * tanh(x / cap) = cap * (1 - 2 / (exp(2 x / cap) + 1)) neither overflows nor loses its sign.
    """
    if options.soft_cap is None:
        return options.scale * _LOG2E, 0.0
    return 2 * options.scale / options.soft_cap * _LOG2E, options.soft_cap * _LOG2E
