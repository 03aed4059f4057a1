"""The roofline of a Llama-like model: the least time that a step can take on a device, by its operations and bytes.

    max(products / matrix rate, weights / bandwidth) + max(decode attention / matrix rate, its KV / bandwidth)
    + prefill attention / matrix rate

KV that several rows share counts once. Knows no engine, no report and no clock, and needs nothing but the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """The best rates of a device, as measured on it."""

    flops: float  # a second, in matrix products
    bandwidth: float  # bytes a second, read and written by a copy


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a model that its roofline depends on."""

    layer_weights: int  # of all layers together
    head_weights: int
    num_layers: int
    query_size: int  # heads x head size
    kv_size: int  # elements of K and V of one token in one layer
    item_bytes: int  # of a weight and of an element of K or V

    @classmethod
    def of(cls, config: PreTrainedConfig, item_bytes: int) -> ModelSize:
        """Return the sizes of a Llama-like model with SwiGLU and without experts."""
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        head_size = getattr(config, "head_dim", None) or hidden // heads
        layer = hidden * (2 * (heads + kv_heads) * head_size + 3 * config.intermediate_size)
        return cls(
            layer_weights=layer * config.num_hidden_layers,
            head_weights=hidden * config.vocab_size,
            num_layers=config.num_hidden_layers,
            query_size=heads * head_size,
            kv_size=2 * kv_heads * head_size,
            item_bytes=item_bytes,
        )


class StepWork(NamedTuple):
    """What one step computes."""

    num_tokens: int
    num_sampled: int  # tokens that get logits
    decode_pairs: float  # query-key pairs of the decoding rows
    decode_kv_tokens: float  # tokens whose K and V these rows read
    prefill_pairs: float  # query-key pairs of the other rows


def least_seconds(work: StepWork, size: ModelSize, limits: Limits) -> float:
    """Return the least time of a step in seconds, by the formula at the top of this file."""
    products = 2 * (size.layer_weights * work.num_tokens + size.head_weights * work.num_sampled)
    weight_bytes = (size.layer_weights + size.head_weights) * size.item_bytes
    kv_bytes = work.decode_kv_tokens * size.kv_size * size.num_layers * size.item_bytes
    return (
        max(products / limits.flops, weight_bytes / limits.bandwidth)
        + max(attention_seconds(work.decode_pairs, size, limits), kv_bytes / limits.bandwidth)
        + attention_seconds(work.prefill_pairs, size, limits)
    )


def attention_seconds(num_pairs: float, size: ModelSize, limits: Limits) -> float:
    """Return the least time of the two products of attention for so many query-key pairs."""
    return 4 * size.num_layers * size.query_size * num_pairs / limits.flops
