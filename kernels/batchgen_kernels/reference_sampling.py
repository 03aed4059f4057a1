"""Token choice in plain torch: the truth that every other backend is tested against. Draws come from the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from batchgen_kernels.philox import uniform
from batchgen_kernels.sampling import Chosen, SamplingRows


def choose(logits: Tensor, rows: SamplingRows | None) -> Chosen:
    """See `sampling.SamplingBackend`. As simple as can be: filters sort the whole vocabulary."""
    values, tokens = logits.max(-1)
    best = values.float()
    if rows is not None:
        tokens = torch.where(rows.temperatures > 0, _draw(logits.float() - best[:, None], rows), tokens)
    return Chosen(torch.where(best.isfinite(), tokens, 0), best)


def _draw(logits: Tensor, rows: SamplingRows) -> Tensor:
    """[rows] token ids; `logits` [rows, vocab] float32 with the best at 0."""
    weights = (logits / torch.where(rows.temperatures > 0, rows.temperatures, 1)[:, None]).exp()
    kept = weights >= rows.min_p[:, None]
    if rows.is_filtered:
        kept &= weights >= _least_kept(weights, rows)
    cumulative = torch.where(kept, weights, 0).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    # A draw just below 1 must not round up to the total, where no token is.
    target = torch.minimum(_draws(rows) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _draws(rows: SamplingRows) -> Tensor:
    """[rows, 1] float64."""
    words = (column.cpu().numpy().view(np.uint64) for column in (rows.keys, rows.positions, rows.samples))
    return torch.from_numpy(uniform(*words)).to(rows.keys.device)[:, None]


def _least_kept(weights: Tensor, rows: SamplingRows) -> Tensor:
    """[rows, 1]: the least weight that top_k and then top_p keep."""
    ordered = weights.sort(-1, descending=True).values
    places = torch.arange(weights.shape[-1], device=weights.device)
    in_top_k = (places < rows.top_k[:, None]) | (rows.top_k == 0)[:, None]
    best = torch.where(in_top_k, ordered, 0).double()
    top_p = rows.top_p[:, None]
    before = best.cumsum(-1) - best  # of all better ones
    in_top_p = (before < top_p * best.sum(-1, keepdim=True)) | (top_p >= 1)
    in_top_p[:, 0] = True  # the best stays, however small top_p is
    return torch.where(in_top_k & in_top_p, ordered, torch.inf).amin(-1, keepdim=True)
