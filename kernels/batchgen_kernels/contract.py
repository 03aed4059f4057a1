"""The contracts of attention and sampling: what a backend is given and must do. Knows tensors; knows nothing of models.

Attention: a layer's KV pool is a pair of tensors, one block of one KV head contiguous:

    key_cache    [num_blocks, num_kv_heads, block_size, key_head_size]
    value_cache  [num_blocks, num_kv_heads, block_size, value_head_size]

    slot of a token = block_table[position // block_size] * block_size + position % block_size

Slots that hold no token may contain anything, NaN included: masked elements are replaced, never multiplied by 0.

Sampling: the token of each row depends on its own logits only:

    weight of a token   exp((logit - best logit) / temperature)
    kept tokens         the top_k best; of these the fewest of the best whose share of the weight reaches top_p
                        (Holtzman et al., arXiv 1904.09751); also tokens whose weight equals that of the last one; of
                        all these, the tokens whose weight is at least min_p
    sampled token       the first kept token, in the order of ids, whose cumulative weight exceeds
                        draw * (weight of all kept tokens), summed in float64; the draw is `philox.uniform` of key,
                        position and sample

So a row's token does not depend on other rows, nor on their order or number. Backends agree up to rounding.
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
    """The tokens of one step and their KV slots. The T query tokens of R rows are concatenated row by row.

    Row r has the queries `[query_starts[r], query_starts[r + 1])`, which are the last of its `seq_lens[r]` tokens; its
    KV is in the blocks `block_tables[r]`. The lists are on the host, for backends that plan a step there. In steps
    without `repeated`, tokens behind those of the last row are padding: their slot is -1, their K and V are not
    stored, and their outputs are undefined.
    """

    slot_mapping: Tensor  # [T + C] int64: the slot of each token's K and V, then the second slots of `repeated`
    block_tables: Tensor  # [R or more, max_blocks] int64, padded with 0
    query_starts: Sequence[int]  # R + 1 numbers
    seq_lens: Sequence[int]  # R numbers, including this step's tokens
    groups: Sequence[BlockGroup]  # disjoint, in the order of rows; their blocks were filled in earlier steps
    block_size: int
    repeated: Tensor | None = None  # [C] int64: the tokens, of T, that have a second slot; None if none has

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The options of a layer's attention."""

    scale: float
    sliding_window: int | None = None  # a token attends to itself and the sliding_window - 1 tokens before it
    soft_cap: float | None = None  # scores become soft_cap * tanh(score / soft_cap)
    sinks: Tensor | None = None  # [num_heads]: a logit for each head, in the softmax without a value


class LayerCache(NamedTuple):
    """One layer's part of the KV pool, with the shapes in the module docstring."""

    key: Tensor
    value: Tensor


class AttentionBackend(Protocol):
    """Call `prepare` once a step, then `attend` once a layer."""

    def prepare(self, step: AttentionStep) -> Any:
        """Return what all layers of a step share, to be passed to `attend`."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, prepared: Any, options: AttentionOptions
    ) -> Tensor:
        """Write the step's K and V to their slots, then attend over the block tables.

        query [T, num_heads, key_head_size], key [W, num_kv_heads, key_head_size], value [W, num_kv_heads,
        value_head_size] -> [T, num_heads, value_head_size] in the dtype of `query`; W = T + C is the length of
        `slot_mapping`. All K and V are written first, so a row may attend to blocks that another row of the step fills.
        """


class PreparedForReplay(Protocol):
    """A prepared step whose calls of `attend` may be recorded once and replayed."""

    def update(self, step: AttentionStep) -> None:
        """Replace the step by another decode step, so that replaying the recorded calls computes that one.

        `step` has the same tensors as the prepared step, with new contents, and at most as many rows as they have
        tokens.
        """


@runtime_checkable
class ReplayBackend(AttentionBackend, Protocol):
    """A backend whose `attend` may be part of a recorded forward, such as a CUDA graph."""

    def prepare_for_replay(self, step: AttentionStep) -> PreparedForReplay:
        """Prepare a step of one query a row. What `attend` launches must not depend on the host's lists."""


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    """Copy key and value [W, num_kv_heads, head_size] to the slots [W] of the pool."""
    block_size = cache.key.shape[2]
    block_ids, offsets = slot_mapping // block_size, slot_mapping % block_size
    cache.key[block_ids, :, offsets] = key
    cache.value[block_ids, :, offsets] = value


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks by their ids [C] int64. All are read before the first is written; no target occurs twice."""
    for pool in cache:
        pool[targets] = pool[sources]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling parameters of R rows; tensors on the device of the logits."""

    temperatures: Tensor  # [R] float32; 0: the best token, whatever the other parameters are
    top_p: Tensor  # [R] float32; 1 keeps all tokens
    min_p: Tensor  # [R] float32; 0 keeps all tokens
    top_k: Tensor  # [R] int64; 0 keeps all tokens
    keys: Tensor  # [R] int64: the bits of the unsigned rng_key
    positions: Tensor  # [R] int64: number of tokens that the completion has so far
    samples: Tensor  # [R] int64: index of the sample
    is_filtered: bool  # whether any row has a top_k or a top_p below 1; known to the host


class SampledTokens(NamedTuple):
    """The sampled token of each of R rows, on the device."""

    tokens: Tensor  # [R] int64; 0 where `best` is not finite, as no token can be sampled
    best: Tensor  # [R] float32: the largest logit, NaN if any logit is


class SamplingBackend(Protocol):
    """Call `sample` once a step."""

    def sample(self, logits: Tensor, rows: SamplingRows | None) -> SampledTokens:
        """Return a token for each row of logits [R, vocab] of any floating-point type, which are not changed.

        Without `rows`, each token is the best one, of equal ones the first. Does not synchronise with the device.
        """


class Backend(AttentionBackend, SamplingBackend, Protocol):
    """A backend for both attention and sampling."""
