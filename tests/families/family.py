"""The tiny configuration of a family, and settings that many families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]
Features = dict[str, Settings]  # feature -> the settings that turn it off

WINDOW = 16  # tokens; shorter than most prompts
LONG_WINDOW = 200  # tokens; longer than any row


@dataclass(frozen=True, slots=True)
class Family:
    """A tiny configuration with all special features of the family turned on.

    A feature has the settings that turn it off, so that a test can show that the outputs depend on it. A trait cannot
    be turned off without changing the weights (a shape, tied weights), so it only has a name.
    """

    title: str
    settings: Settings
    features: Features = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    std: float = 0.3  # of the random weights: so large that greedy outputs depend on distant tokens
    seed: int = 0  # of the random weights: such that the two best logits always differ clearly


def mixed(**settings: Any) -> Settings:
    """Return settings of a sliding and a full layer."""
    return {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW, **settings}


def rotary(part: float = 1.0, theta: float = 1e4) -> Settings:
    """Return settings of plain rotary embeddings on `part` of each head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part}}


def scaled_rope(rope_type: str, **settings: Any) -> Settings:
    """Return settings of rotary embeddings scaled by eight from 32 tokens."""
    fixed = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
    return {"rope_parameters": {**fixed, **settings}}


SLIDING: Settings = {"sliding_window": WINDOW}
UNLIMITED: Settings = {"sliding_window": LONG_WINDOW}
ONE_EXPERT: Settings = {"num_experts_per_tok": 1}
# Latent attention: K heads of 24 elements, 8 of them rotary and shared by all heads, V heads of 12.
LATENT: Settings = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
SCALES: Settings = {
    "attention_multiplier": 0.5,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
}
SCALED: Features = {
    "attention scale": {"attention_multiplier": 0.25},
    "residual scale": {"residual_multiplier": 1.0},
    "embedding scale": {"embedding_multiplier": 1.0},
    "logit scale": {"logits_scaling": 1.0},
}
ONE_WINDOW: Features = {"sliding window on one of two layers": UNLIMITED}
HALF_ROTARY: Features = {"partial rotary embedding": rotary()}
LATENT_TRAIT = "latent attention, K and V heads of different sizes"
