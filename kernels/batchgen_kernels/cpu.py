"""Attention on the CPU with torch's own operations: no compiler, nothing built at first use.

A query's context is cut into parts, each attended apart and merged by log-sum-exp (FlashAttention, arXiv 2205.14135;
Hydragen, arXiv 2402.05099):

    group   the blocks a prefix group shares: gathered once, all queries of the group stacked into one product
    prior   what a prefill chunk finds in the row's own blocks
    chunk   the prefill chunk itself, causal, from the fresh K and V without a gather
    decode  the own blocks of rows with one query, padded and batched with rows of about the same length

A (block, KV head) pair is one contiguous run of the pool, so a gather is an index_select of long rows. Layers with a
window shorter than a row, a soft cap, sinks, or different head sizes of K and V are computed by the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from batchgen_kernels.contract import AttentionOptions, AttentionStep, LayerCache, write_kv
from batchgen_kernels.reference import ReferenceBackend

_MIN_SAVED_TOKENS = (
    256  # (rows - 1) * shared tokens: below this the saved reads do not pay for one more product a layer
)


@dataclass(frozen=True, slots=True)
class _Part:
    """Queries `[start, stop)` of the step against a run of blocks that all of them see whole."""

    start: int
    stop: int
    blocks: Tensor  # [blocks]
    num_tokens: int  # of the blocks; the rest of the last block is not looked at


@dataclass(frozen=True, slots=True)
class _DecodeBatch:
    """Rows with one query each, padded to one number of blocks."""

    queries: Tensor  # [B] positions in the step
    blocks: Tensor  # [B, blocks]
    mask: Tensor  # [B, 1, 1, blocks * block_size] float: 0 where a token is, else -inf
    empty: tuple[Tensor, Tensor]  # (row, slot) pairs without a token


@dataclass(slots=True)
class _Prepared:
    step: AttentionStep
    parts: list[_Part] = field(default_factory=list)  # groups and prior contexts
    chunks: list[tuple[int, int]] = field(default_factory=list)  # query ranges of prefill chunks
    decodes: list[_DecodeBatch] = field(default_factory=list)


class CpuBackend:
    """See the module docstring; float32, bfloat16 and float16."""

    def __init__(self) -> None:
        self._reference = ReferenceBackend()

    def prepare(self, step: AttentionStep) -> _Prepared:
        """Cut the step into parts, the same for every layer."""
        prepared = _Prepared(step)
        group_blocks = [0] * step.num_rows
        for group in step.groups:
            if (group.stop - group.start - 1) * group.num_blocks * step.block_size >= _MIN_SAVED_TOKENS:
                group_blocks[group.start : group.stop] = [group.num_blocks] * (group.stop - group.start)
                start, stop = step.query_starts[group.start], step.query_starts[group.stop]
                blocks = step.block_tables[group.start, : group.num_blocks]
                prepared.parts.append(_Part(start, stop, blocks, group.num_blocks * step.block_size))
        for row in range(step.num_rows):
            if step.query_starts[row + 1] - step.query_starts[row] > 1:
                _prepare_chunk(prepared, row, group_blocks[row])
        prepared.decodes = list(_decode_batches(step, group_blocks))
        return prepared

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
            return self._reference.attend(query, key, value, cache, step, options)
        write_kv(key, value, cache, step.slot_mapping)
        merged = _Merged(query, value.shape[-1])
        for part in prepared.parts:
            merged.add(slice(part.start, part.stop), *_attend_part(query, cache, part, options.scale))
        for start, stop in prepared.chunks:
            chunk = slice(start, stop)
            merged.add(chunk, *_attend_chunk(query[chunk], key[chunk], value[chunk], options.scale))
        for batch in prepared.decodes:
            merged.add(batch.queries, *_attend_decodes(query, cache, batch, options.scale))
        return merged.output.to(query.dtype)


def _needs_reference(step: AttentionStep, key: Tensor, value: Tensor, options: AttentionOptions) -> bool:
    window = options.sliding_window
    return (
        options.soft_cap is not None
        or options.sinks is not None
        or (window is not None and max(step.seq_lens) > window)
        or key.shape[-1] != value.shape[-1]
    )


def _prepare_chunk(prepared: _Prepared, row: int, group_blocks: int) -> None:
    step = prepared.step
    start, stop = step.query_starts[row], step.query_starts[row + 1]
    prepared.chunks.append((start, stop))
    num_prior = step.seq_lens[row] - (stop - start) - group_blocks * step.block_size
    if num_prior:
        last_block = group_blocks + -(-num_prior // step.block_size)
        prepared.parts.append(_Part(start, stop, step.block_tables[row, group_blocks:last_block], num_prior))


def _decode_batches(step: AttentionStep, group_blocks: list[int]) -> Iterator[_DecodeBatch]:
    """Batches of rows whose own parts are of about the same length (within a factor of two)."""
    by_size: dict[int, list[tuple[int, int]]] = {}
    for row in range(step.num_rows):
        if step.query_starts[row + 1] - step.query_starts[row] == 1:
            own_tokens = step.seq_lens[row] - group_blocks[row] * step.block_size
            by_size.setdefault((-(-own_tokens // step.block_size)).bit_length(), []).append((row, own_tokens))
    for rows in by_size.values():
        max_blocks = max(-(-own // step.block_size) for _, own in rows)
        blocks = [_padded(step.block_tables[row, group_blocks[row] :], max_blocks) for row, _ in rows]
        lengths = torch.tensor([own for _, own in rows])
        is_empty = torch.arange(max_blocks * step.block_size)[None, :] >= lengths[:, None]
        mask = torch.zeros(is_empty.shape).masked_fill_(is_empty, -torch.inf)[:, None, None, :]
        queries = torch.tensor([step.query_starts[row] for row, _ in rows])
        row_ids, slots = is_empty.nonzero(as_tuple=True)
        yield _DecodeBatch(queries, torch.stack(blocks), mask, (row_ids, slots))


def _padded(blocks: Tensor, length: int) -> Tensor:
    """The first `length` blocks, padded with block 0 where the table is shorter."""
    return torch.nn.functional.pad(blocks[:length], (0, length - min(length, len(blocks))))


def _gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """[..., num_kv_heads, blocks * block_size, head_size] of `blocks` [..., blocks]."""
    _, num_heads, block_size, head_size = cache.shape
    rows = blocks[..., None, :] * num_heads + torch.arange(num_heads)[:, None]
    flat = cache.view(-1, block_size * head_size).index_select(0, rows.flatten())
    return flat.view(*blocks.shape[:-1], num_heads, blocks.shape[-1] * block_size, head_size)


def _by_kv_head(query: Tensor, num_kv_heads: int) -> Tensor:
    """[q, heads, d] as [q, kv_heads, heads per KV head, d]."""
    return query.reshape(query.shape[0], num_kv_heads, -1, query.shape[2])


def _flash(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of torch's CPU kernel; query [B, h, q, d], key and value [B, h, k, d]."""
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return output, lse


def _attend_part(query: Tensor, cache: LayerCache, part: _Part, scale: float) -> tuple[Tensor, Tensor]:
    """All queries of the part stacked: [q, heads, d] as [kv_heads, q * heads per KV head, d] against one context."""
    keys = _gather(cache.key, part.blocks)[:, : part.num_tokens]
    values = _gather(cache.value, part.blocks)[:, : part.num_tokens]
    num_kv_heads = keys.shape[0]
    queries = _by_kv_head(query[part.start : part.stop], num_kv_heads)
    num_queries, _, num_shared, _ = queries.shape
    stacked = queries.transpose(0, 1).flatten(1, 2)
    output, lse = _flash(stacked[None], keys[None], values[None], scale)
    output = output.reshape(num_kv_heads, num_queries, num_shared, -1).transpose(0, 1).flatten(1, 2)
    return output, lse.reshape(num_kv_heads, num_queries, num_shared).transpose(0, 1).flatten(1, 2)


def _attend_chunk(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """A chunk against itself, causal. Tokens before one that is not finite do not see it and stay as they are."""
    is_finite = (key.float().sum((1, 2)) + value.float().sum((1, 2))).isfinite()
    if bool(is_finite.all()):
        return _attend_finite_chunk(query, key, value, scale)
    # The kernel multiplies masked values by 0, which leaves NaN: they are taken out, and put back where they are seen.
    query, key, value = (torch.where(is_finite[:, None, None], tensor, 0) for tensor in (query, key, value))
    output, lse = _attend_finite_chunk(query, key, value, scale)
    return output.masked_fill(((~is_finite).cumsum(0) > 0)[:, None, None], torch.nan), lse


def _attend_finite_chunk(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """KV heads are the batch, so that their query heads share K and V."""
    queries = _by_kv_head(query, key.shape[1]).permute(1, 2, 0, 3)  # [kv_heads, g, q, d]
    keys = key.transpose(0, 1)[:, None].expand(-1, queries.shape[1], -1, -1)
    values = value.transpose(0, 1)[:, None].expand(-1, queries.shape[1], -1, -1)
    output, lse = _flash(queries, keys, values, scale, causal=True)
    return output.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2)


def _attend_decodes(query: Tensor, cache: LayerCache, batch: _DecodeBatch, scale: float) -> tuple[Tensor, Tensor]:
    """One query a row against its own padded context; the query heads of a KV head stand in for query positions."""
    keys, values = _gather(cache.key, batch.blocks), _gather(cache.value, batch.blocks)
    rows, slots = batch.empty
    keys[rows, :, slots] = 0  # 0 * NaN and NaN - inf would both be NaN: what is masked must be a number
    values[rows, :, slots] = 0
    queries = _by_kv_head(query[batch.queries], keys.shape[1])
    output, lse = _flash(queries, keys, values, scale, mask=batch.mask.to(query.dtype))
    return output.flatten(1, 2), lse.flatten(1, 2)


class _Merged:
    """The running softmax of all queries over the parts seen so far, in float32."""

    def __init__(self, query: Tensor, value_head_size: int) -> None:
        num_tokens, num_heads, _ = query.shape
        self.output = torch.zeros(num_tokens, num_heads, value_head_size)
        self._lse = torch.full((num_tokens, num_heads), -torch.inf)

    def add(self, queries: slice | Tensor, output: Tensor, lse: Tensor) -> None:
        """Merge one part's output [q, heads, d] and log-sum-exp [q, heads] (Hydragen, equation 4)."""
        before, both = self._lse[queries], torch.logaddexp(self._lse[queries], lse)
        old, new = (before - both).exp()[..., None], (lse - both).exp()[..., None]
        self.output[queries] = self.output[queries] * old + output * new
        self._lse[queries] = both
