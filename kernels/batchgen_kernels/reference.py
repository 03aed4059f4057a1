"""Attention and sampling in plain torch, against which every other backend is tested.

Attention is computed row by row in float32; random draws are computed on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from batchgen_kernels.contract import AttentionOptions, AttentionStep, LayerCache, SampledTokens, SamplingRows, write_kv
from batchgen_kernels.philox import uniform

_MAX_SCORES = 1 << 24  # scores at a time, 64 MiB, so that the scores of a long prompt are never all in memory


@dataclass(slots=True)
class PreparedReference:
    """A step that is not prepared any further."""

    step: AttentionStep

    def update(self, step: AttentionStep) -> None:
        self.step = step


class ReferenceBackend:
    """The simplest implementation; reads every row's whole context and ignores groups."""

    def prepare(self, step: AttentionStep) -> PreparedReference:
        return PreparedReference(step)

    def prepare_for_replay(self, step: AttentionStep) -> PreparedReference:
        """Return the step, for calling `attend` again, not for CUDA graphs: the result depends on the host's lists."""
        return PreparedReference(step)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        prepared: PreparedReference,
        options: AttentionOptions,
    ) -> Tensor:
        """See `contract.AttentionBackend`."""
        step = prepared.step
        num_padding = len(query) - step.query_starts[-1]
        num_stored = len(key) - num_padding
        write_kv(key[:num_stored], value[:num_stored], cache, step.slot_mapping[:num_stored])
        parts = [_attend_row(query, cache, step, row, options) for row in range(step.num_rows)]
        padding = query.new_zeros(num_padding, query.shape[1], cache.value.shape[-1])
        return torch.cat([*parts, padding]).to(query.dtype)

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """See `contract.SamplingBackend`."""
        return sample(logits, rows)


def _attend_row(query: Tensor, cache: LayerCache, step: AttentionStep, row: int, options: AttentionOptions) -> Tensor:
    """Return the output [q, num_heads, value_head_size] of one row's q queries."""
    start, stop, length = step.query_starts[row], step.query_starts[row + 1], step.seq_lens[row]
    num_blocks = -(-length // step.block_size)
    blocks = step.block_tables[row, :num_blocks]
    # [num_heads, length, head_size]
    num_shared = query.shape[1] // cache.key.shape[1]
    keys, values = (
        tensor[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float().repeat_interleave(num_shared, 0)
        for tensor in cache
    )
    positions = torch.arange(length - (stop - start), length, device=query.device)
    slice_len = max(_MAX_SCORES // (query.shape[1] * length), 1)
    parts = zip(torch.split(query[start:stop], slice_len), torch.split(positions, slice_len), strict=True)
    return torch.cat([_attend_queries(queries, at, keys, values, options) for queries, at in parts])


def _attend_queries(
    query: Tensor, positions: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions
) -> Tensor:
    """Attend from queries [q, num_heads, head_size] at `positions` [q] of a row to all its keys and values."""
    scores = query.transpose(0, 1).float() @ keys.transpose(1, 2) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    is_visible = visible(positions, keys.shape[1], options.sliding_window)
    scores = torch.where(is_visible, scores, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.float()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : keys.shape[1]]
    # A weight of 0 does not cancel a non-finite value: set those to 0, and the outputs of queries that see one to NaN.
    is_finite = values.isfinite().all(-1).all(0)
    output = weights @ torch.where(is_finite[:, None], values, 0)
    return output.transpose(0, 1).masked_fill((is_visible & ~is_finite).any(-1)[:, None, None], torch.nan)


def visible(positions: Tensor, length: int, sliding_window: int | None) -> Tensor:
    """Return which of the first `length` tokens the queries at `positions` [q] see, [q, length] bool."""
    distance = positions[:, None] - torch.arange(length, device=positions.device)[None, :]
    is_causal = distance >= 0
    return is_causal if sliding_window is None else is_causal & (distance < sliding_window)


def sample(logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
    """See `contract.SamplingBackend`. Filters sort the whole vocabulary."""
    values, tokens = logits.max(-1)
    best = values.float()
    if rows is not None:
        tokens = torch.where(rows.temperatures > 0, _draw(logits.float() - best[:, None], rows), tokens)
    return SampledTokens(torch.where(best.isfinite(), tokens, 0), best)


def _draw(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Return token ids [rows]; `logits` [rows, vocab] are float32, the best one 0."""
    weights = (logits / torch.where(rows.temperatures > 0, rows.temperatures, 1)[:, None]).exp()
    kept = weights >= rows.min_p[:, None]
    if rows.is_filtered:
        kept &= weights >= _min_kept_weights(weights, rows)
    cumulative = torch.where(kept, weights, 0).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    # A draw just below 1 must not round up to the total, which no cumulative weight exceeds.
    target = torch.minimum(_draws(rows) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _draws(rows: SamplingRows) -> Tensor:
    """Return the draw of each row, [rows, 1] float64."""
    columns = (column.cpu().numpy().view(np.uint64) for column in (rows.keys, rows.positions, rows.samples))
    return torch.from_numpy(uniform(*columns)).to(rows.keys.device)[:, None]


def _min_kept_weights(weights: Tensor, rows: SamplingRows) -> Tensor:
    """Return the smallest weight that top_k and then top_p keep, [rows, 1]."""
    ordered = weights.sort(-1, descending=True).values
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    in_top_k = (ranks < rows.top_k[:, None]) | (rows.top_k == 0)[:, None]
    best = torch.where(in_top_k, ordered, 0).double()
    top_p = rows.top_p[:, None]
    before = best.cumsum(-1) - best  # the weight of all better tokens
    in_top_p = (before < top_p * best.sum(-1, keepdim=True)) | (top_p >= 1)
    in_top_p[:, 0] = True  # the best token is always kept
    return torch.where(in_top_k & in_top_p, ordered, torch.inf).amin(-1, keepdim=True)
