"""The contract of token choice: what every backend is given and must do. Knows tensors; imports nothing of `batchgen`.

For each row, of its logits alone:

    weight of a token   exp((logit - best logit) / temperature)
    kept                the top_k best; of these the fewest of the best whose share of the weight reaches top_p
                        (Holtzman et al., arXiv 1904.09751); tokens of the last one's weight too; of all those the
                        ones whose weight is at least min_p
    chosen              the first token, in the order of ids, whose cumulative weight exceeds draw * (weight of all
                        kept), sums in float64; the draw is `philox.uniform` of key, position and sample

So a row's token does not depend on the other rows, nor on their order or number. Backends agree but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from batchgen_kernels.contract import AttentionBackend


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each of R rows takes its token; columns on the device of the logits."""

    temperatures: Tensor  # [R] float32; 0: the best token, whatever else is said
    top_p: Tensor  # [R] float32; 1: all
    min_p: Tensor  # [R] float32; 0: all
    top_k: Tensor  # [R] int64; 0: all
    keys: Tensor  # [R] int64: the bits of an unsigned draw key
    positions: Tensor  # [R] int64: tokens that the completion has
    samples: Tensor  # [R] int64
    is_filtered: bool  # whether any row has a top_k or a top_p below 1; known to the host


class Chosen(NamedTuple):
    """Of each row; on the device."""

    tokens: Tensor  # [R] int64; 0 where `best` is not finite, for nothing can be chosen there
    best: Tensor  # [R] float32: its greatest logit, NaN if any is


class SamplingBackend(Protocol):
    """`choose` once a step."""

    def choose(self, logits: Tensor, rows: SamplingRows | None) -> Chosen:
        """logits [R, vocab] of any floating type, not changed; no rows: each takes its best token, the first of equals.

        Launches work on the device and waits for none of it.
        """


class Backend(AttentionBackend, SamplingBackend, Protocol):
    """All that a model needs."""
