from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedConfig

from batchgen.models.rope import fix_longrope

SHORT, LONG = [1.0] * 8, [4.0] * 8
LONGROPE: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": SHORT, "long_factor": LONG}


def phi3(rope: dict[str, Any]) -> PreTrainedConfig:
    return AutoConfig.for_model(
        "phi3", hidden_size=64, num_attention_heads=4, max_position_embeddings=256,
        original_max_position_embeddings=32, rope_parameters=rope,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("max_model_len", "factors", "values"), [(31, "short", SHORT), (32, "short", SHORT), (33, "long", LONG)]
)
def test_the_context_limit_chooses_the_factors(max_model_len: int, factors: str, values: list[float]) -> None:
    fixed = fix_longrope(phi3(LONGROPE), max_model_len)
    assert fixed.factors == factors
    assert fixed.config.rope_parameters["short_factor"] == fixed.config.rope_parameters["long_factor"] == values


def test_the_given_config_is_not_changed() -> None:
    config = phi3(LONGROPE)
    fix_longrope(config, 256)
    assert config.rope_parameters["short_factor"] == SHORT


def test_a_config_without_longrope_is_returned() -> None:
    config = phi3({"rope_type": "default", "rope_theta": 1e4})
    assert fix_longrope(config, 256) == (config, None)
