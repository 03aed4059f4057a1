"""The config of a language part, and the names of its tensors in every layout that transformers has written."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from batchgen.models.multimodal import language_config, language_tensor_names

LAYER = "layers.0.self_attn.q_proj.weight"


def _renamed(name: str, language: PreTrainedConfig) -> str:
    for pattern, replacement in language_tensor_names(language).items():
        name = re.sub(pattern, replacement, name)
    return name


@pytest.mark.parametrize(
    "prefix",
    ["language_model.model.", "model.language_model.", "model.language_model.model.", "model.text_model.",
     "language_model.", "text_model.", "model."],
)  # fmt: skip
def test_the_language_part_is_found_under_every_prefix(prefix: str) -> None:
    assert _renamed(f"{prefix}{LAYER}", AutoConfig.for_model("llama")) == f"model.{LAYER}"


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "language_model.lm_head.weight", "model.language_model.lm_head.weight"]
)
def test_the_output_layer_is_found_under_every_prefix(name: str) -> None:
    assert _renamed(name, AutoConfig.for_model("llama")) == "lm_head.weight"


def test_the_decoder_of_another_family_has_another_name() -> None:
    language = AutoConfig.for_model("gpt2")
    assert _renamed("language_model.transformer.h.0.ln_1.weight", language) == "transformer.h.0.ln_1.weight"
    assert _renamed("model.language_model.h.0.ln_1.weight", language) == "transformer.h.0.ln_1.weight"


@pytest.mark.parametrize(
    "name",
    ["vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", "model.vision_model.encoder.layers.0.mlp.fc1.weight",
     "model.visual.blocks.0.attn.qkv.weight", "multi_modal_projector.linear_1.weight",
     "audio_tower.layers.0.fc1.weight"],
)  # fmt: skip
def test_other_parts_keep_their_names(name: str) -> None:
    assert _renamed(name, AutoConfig.for_model("llama")) == name


def test_a_text_model_is_its_own_language_part() -> None:
    config = AutoConfig.for_model("llama")
    assert language_config(config) is config


def test_the_output_layer_and_the_dtype_are_those_of_the_whole_model() -> None:
    config = AutoConfig.for_model(
        "llava", tie_word_embeddings=True, dtype="bfloat16", text_config={"model_type": "llama"}
    )
    language = language_config(config)
    assert (language.model_type, language.tie_word_embeddings, language.dtype) == ("llama", True, torch.bfloat16)
    assert not config.text_config.tie_word_embeddings


def test_a_text_only_qwen_vl_is_a_qwen_with_plain_rotary_embeddings() -> None:
    """As in the checkpoints of the hub: a flat config, and the old name of the rotary settings."""
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    config = AutoConfig.for_model("qwen2_5_vl", hidden_size=2048, num_attention_heads=16, rope_scaling=rope)
    language = language_config(config)
    assert (language.model_type, language.hidden_size) == ("qwen2", 2048)
    assert language.rope_parameters["rope_type"] == "default"
    assert not any(key.startswith("mrope") for key in language.rope_parameters)
