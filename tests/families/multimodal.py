"""Tiny multimodal models, with their vision or audio parts. docs/models.md and TESTED_MULTIMODAL must agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedModel

from tests.families.family import Settings, rotary
from tests.families.registry import settings_of

_VISION: Settings = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_AUDIO: Settings = {"num_mel_bins": 8, "max_source_positions": 20}
_QWEN_VISION: Settings = {"depth": 1, "num_heads": 2, "hidden_size": 32}


@dataclass(frozen=True, slots=True)
class Multimodal:
    """`text` is the family of the language part; without `text_type`, that is also the type of its config."""

    title: str
    class_name: str
    text: str
    parts: Mapping[str, Settings]
    text_type: str | None = None
    sections: tuple[int, int, int] | None = None  # of half a head, rotated by time, height and width
    without: tuple[str, ...] = ()  # settings of the text family that this language part lacks
    seed: int = 0  # of the random weights: such that the two best logits always differ clearly


# fmt: off
MULTIMODAL: Mapping[str, Multimodal] = {
    "gemma3": Multimodal(
        "Gemma 3", "Gemma3ForConditionalGeneration", "gemma3_text",
        {"vision_config": {**_VISION, "model_type": "siglip_vision_model"}},
    ),
    "idefics3": Multimodal("Idefics3", "Idefics3ForConditionalGeneration", "llama", {"vision_config": _VISION}),
    "internvl": Multimodal(
        "InternVL", "InternVLForConditionalGeneration", "qwen2",
        {"vision_config": {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]}},
    ),
    "llava": Multimodal(
        "LLaVA", "LlavaForConditionalGeneration", "llama",
        {"vision_config": {**_VISION, "model_type": "clip_vision_model"}},
    ),
    "llava_next": Multimodal(
        "LLaVA-NeXT", "LlavaNextForConditionalGeneration", "mistral",
        {"vision_config": {**_VISION, "model_type": "clip_vision_model"}},
    ),
    "llava_onevision": Multimodal(
        "LLaVA-OneVision", "LlavaOnevisionForConditionalGeneration", "qwen2",
        {"vision_config": {**_VISION, "model_type": "siglip_vision_model"}},
    ),
    "mistral3": Multimodal(
        "Mistral Small 3.1, Ministral 3", "Mistral3ForConditionalGeneration", "ministral3",
        {"vision_config": {**_VISION, "model_type": "pixtral"}},
    ),
    "ovis2": Multimodal(
        "Ovis2", "Ovis2ForConditionalGeneration", "qwen2", {"vision_config": {**_VISION, "vocab_size": 16}},
    ),
    "qwen2_5_vl": Multimodal(
        "Qwen2.5-VL", "Qwen2_5_VLForConditionalGeneration", "qwen2",
        {"vision_config": {**_QWEN_VISION, "intermediate_size": 32, "out_hidden_size": 64}},
        "qwen2_5_vl_text", (2, 3, 3),
    ),
    "qwen2_audio": Multimodal(
        "Qwen2-Audio", "Qwen2AudioForConditionalGeneration", "qwen2",
        {"audio_config": {**_AUDIO, "d_model": 32, "encoder_ffn_dim": 32, "encoder_layers": 1,
                          "encoder_attention_heads": 2}}, seed=2,
    ),
    "qwen2_vl": Multimodal(
        "Qwen2-VL", "Qwen2VLForConditionalGeneration", "qwen2",
        {"vision_config": {**_QWEN_VISION, "embed_dim": 32, "hidden_size": 64}}, "qwen2_vl_text", (2, 3, 3), seed=1,
    ),
    "qwen3_vl": Multimodal(
        "Qwen3-VL", "Qwen3VLForConditionalGeneration", "qwen3",
        {"vision_config": {**_QWEN_VISION, "intermediate_size": 32, "out_hidden_size": 64,
                           "deepstack_visual_indexes": [0]}},
        "qwen3_vl_text", (4, 4, 4), without=("layer_types", "sliding_window", "use_sliding_window"),
    ),
    "smolvlm": Multimodal("SmolVLM", "SmolVLMForConditionalGeneration", "llama", {"vision_config": _VISION}),
    "voxtral": Multimodal(
        "Voxtral", "VoxtralForConditionalGeneration", "llama",
        {"audio_config": {**_AUDIO, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                          "num_attention_heads": 2}},
    ),
}
# fmt: on

AVAILABLE = [model_type for model_type in MULTIMODAL if model_type in CONFIG_MAPPING]


def tiny_multimodal(model_type: str) -> PreTrainedModel:
    """Return the whole model with random float32 weights; no token ends its output."""
    family = MULTIMODAL[model_type]
    text = {key: value for key, value in settings_of(family.text).items() if key not in family.without}
    text["model_type"] = family.text_type or family.text
    if family.sections is not None:
        rope: dict[str, Any] = {**rotary()["rope_parameters"], "mrope_section": list(family.sections)}
        text["rope_parameters"] = rope
    config = AutoConfig.for_model(model_type, text_config=text, **family.parts)
    model_class: Any = getattr(transformers, family.class_name)
    model: PreTrainedModel = model_class._from_config(config, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(family.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) + (parameter if parameter.ndim == 1 else 0))
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    return model.eval()  # type: ignore[no-untyped-call,no-any-return]
