"""SamplingColumns: how the rows of a step take their next tokens, as the kernels want to know it. The host's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from batchgen.engine.request import Request
from batchgen.models.sampling import SamplingRows


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """One entry a row in each column."""

    shares: npt.NDArray[np.float64]  # [3, R] temperature, top_p, min_p
    counts: npt.NDArray[np.int64]  # [4, R] top_k, draw key, position, sample index
    is_filtered: bool

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingColumns:
        """Columns of no rows where all of them take the best."""
        if all(request.params.is_greedy for request in requests):
            return cls(np.empty((3, 0)), np.empty((4, 0), np.int64), False)
        params = [request.params for request in requests]
        shares = [(0.0 if each.is_greedy else each.temperature, each.top_p, each.min_p) for each in params]
        # Unsigned, for a draw key has 64 bits.
        counts = np.array(
            [(r.params.top_k, r.draw_key, r.num_output_tokens, r.sample_index) for r in requests], np.uint64
        )
        is_filtered = any(each.top_k or each.top_p < 1 for each in params)
        return cls(np.array(shares).T, counts.view(np.int64).T, is_filtered)

    def on_device(self, shares: Tensor, counts: Tensor) -> SamplingRows | None:
        """The same of their tensors; None where all rows take the best."""
        if not counts.numel():
            return None
        temperatures, top_p, min_p = shares.float()
        top_k, keys, positions, samples = counts
        return SamplingRows(temperatures, top_p, min_p, top_k, keys, positions, samples, self.is_filtered)
