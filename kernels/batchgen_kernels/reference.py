"""Attention in plain torch, row by row in float32: the truth that every other backend is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from batchgen_kernels.contract import AttentionOptions, AttentionStep, LayerCache, write_kv


class ReferenceBackend:
    """As simple as can be; reads every row's whole context and ignores groups."""

    def prepare(self, step: AttentionStep) -> AttentionStep:
        return step

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        prepared: AttentionStep,
        options: AttentionOptions,
    ) -> Tensor:
        """See `contract.AttentionBackend`."""
        step = prepared
        write_kv(key, value, cache, step.slot_mapping)
        rows = [_attend_row(query, cache, step, row, options) for row in range(step.num_rows)]
        return torch.cat(rows).to(query.dtype)


def _attend_row(query: Tensor, cache: LayerCache, step: AttentionStep, row: int, options: AttentionOptions) -> Tensor:
    """[q, num_heads, value_head_size] of one row's q queries."""
    start, stop, length = step.query_starts[row], step.query_starts[row + 1], step.seq_lens[row]
    num_blocks = -(-length // step.block_size)
    blocks = step.block_tables[row, :num_blocks]
    # [num_kv_heads, length, head_size]
    keys = cache.key[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float()
    values = cache.value[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float()
    num_groups = query.shape[1] // keys.shape[0]
    queries = query[start:stop].transpose(0, 1).float()
    scores = queries @ keys.repeat_interleave(num_groups, 0).transpose(1, 2) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    positions = torch.arange(length - (stop - start), length, device=query.device)
    is_visible = visible(positions, length, options.sliding_window)
    scores = torch.where(is_visible, scores, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.float()[:, None, None].expand(-1, stop - start, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., :length]
    # A weight of 0 does not remove a value that is not finite: such values are taken out, and put back where seen.
    is_finite = values.isfinite().all(-1).all(0)
    output = weights @ torch.where(is_finite[:, None], values, 0).repeat_interleave(num_groups, 0)
    return output.transpose(0, 1).masked_fill((is_visible & ~is_finite).any(-1)[:, None, None], torch.nan)


def visible(positions: Tensor, length: int, sliding_window: int | None) -> Tensor:
    """[q, length] bool: which of the first `length` tokens the queries at `positions` [q] see."""
    distance = positions[:, None] - torch.arange(length, device=positions.device)[None, :]
    seen = distance >= 0
    return seen if sliding_window is None else seen & (distance < sliding_window)
