"""The attention contract: what every backend is given and must do. Knows tensors; imports nothing of `batchgen`.

A layer's KV pool is a pair of tensors, one block of one KV head contiguous:

    key_cache    [num_blocks, num_kv_heads, block_size, key_head_size]
    value_cache  [num_blocks, num_kv_heads, block_size, value_head_size]

    slot of a token = block_table[position // block_size] * block_size + position % block_size

Slots that hold no token may contain anything, NaN included: what is masked is selected away, never multiplied by 0.

The contract of token choice: what every backend is given and must do. Knows tensors; imports nothing of `batchgen`.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class BlockGroup(NamedTuple):
    """Rows `[start, stop)` of a step whose block tables begin with the same `num_blocks` full, computed blocks."""

    start: int
    stop: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Where the tokens of one step are. The T query tokens of R rows lie one row after the other.

    Row r has the queries `[query_starts[r], query_starts[r + 1])`, the last ones of its `seq_lens[r]` tokens, in the
    blocks `block_tables[r]`. The lists are the host's copy for backends that work row by row. Tokens behind the last
    row's are padding, in steps without `repeated`: their slot is -1, nothing of them is stored, and what comes of them
    means nothing.
    """

    slot_mapping: Tensor  # [T + C] int64: where each token's K and V go, then where those of `repeated` go too
    block_tables: Tensor  # [R or more, max_blocks] int64, padded with 0
    query_starts: Sequence[int]  # R + 1
    seq_lens: Sequence[int]  # R, this step's tokens included
    groups: Sequence[BlockGroup]  # disjoint, in the order of rows; blocks that only full, earlier tokens fill
    block_size: int
    repeated: Tensor | None = None  # [C] int64: which of the T tokens have a second slot; None: not one

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer wants of its attention."""

    scale: float
    sliding_window: int | None = None  # a token sees itself and this number - 1 before it
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    sinks: Tensor | None = None  # [num_heads]: a logit a head that takes part in the softmax and adds no value


class LayerCache(NamedTuple):
    """One layer's share of the KV pool, shaped as drawn above."""

    key: Tensor
    value: Tensor


class AttentionBackend(Protocol):
    """`prepare` once a step, `attend` once a layer."""

    def prepare(self, step: AttentionStep) -> Any:
        """What all layers of a step have in common; handed to `attend`."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, prepared: Any, options: AttentionOptions
    ) -> Tensor:
        """Write the step's K and V to their slots, then attend over the block tables.

        query [T, num_heads, key_head_size], key [W, num_kv_heads, key_head_size], value [W, num_kv_heads,
        value_head_size] -> [T, num_heads, value_head_size] in the dtype of `query`; W = T + C, one for each slot of
        `slot_mapping`. Writing comes first, so a row sees blocks that another row of the same step fills.
        """


class PreparedForReplay(Protocol):
    """A prepared step whose `attend` may be recorded once and replayed."""

    def update(self, step: AttentionStep) -> None:
        """Go on with another decode step in the same tensors: what was recorded computes it when it is replayed.

        `step` has the tensors that were prepared, with new contents, and as many rows as there are tokens in them or
        fewer.
        """


@runtime_checkable
class ReplayBackend(AttentionBackend, Protocol):
    """A backend whose `attend` may be part of a recorded forward: a CUDA graph."""

    def prepare_for_replay(self, step: AttentionStep) -> PreparedForReplay:
        """`prepare` for a step of one query a row. What `attend` launches must not depend on the host's lists."""


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    """Copy key and value [W, num_kv_heads, head_size] into the slots [W] of the pool."""
    block_size = cache.key.shape[2]
    block_ids, offsets = slot_mapping // block_size, slot_mapping % block_size
    cache.key[block_ids, :, offsets] = key
    cache.value[block_ids, :, offsets] = value


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks, ids [C] int64 each. All are read before the first is written; a target occurs once."""
    for pool in cache:
        pool[targets] = pool[sources]


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


class SampledTokens(NamedTuple):
    """Of each row; on the device."""

    tokens: Tensor  # [R] int64; 0 where `best` is not finite, for nothing can be chosen there
    best: Tensor  # [R] float32: its greatest logit, NaN if any is


class SamplingBackend(Protocol):
    """`sample` once a step."""

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """logits [R, vocab] of any floating type, not changed; no rows: each takes its best token, the first of equals.

        Launches work on the device and waits for none of it.
        """


class Backend(AttentionBackend, SamplingBackend, Protocol):
    """All that a model needs."""
