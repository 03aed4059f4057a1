"""The language part of a multimodal checkpoint: its config, and the names of its tensors. Knows configs; reads no file.

With text only, a multimodal model of transformers is the decoder of its text config, which has a class of its own.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

# Families whose greedy tokens on text are compared with `generate` of the whole model in the tests (tests/families).
TESTED_MULTIMODAL = frozenset({
    "gemma3", "idefics3", "internvl", "llava", "llava_next", "llava_onevision", "mistral3", "ovis2", "qwen2_5_vl",
    "qwen2_audio", "qwen2_vl", "qwen3_vl", "smolvlm", "voxtral",
})  # fmt: skip

# Text families that are another family as long as all tokens are text: the three rows of their positions (time, height
# and width) are then equal, so that each section of a head is rotated by the same position.
_EQUAL_TO = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
_NOT_COPIED = ("model_type", "transformers_version", "architectures")
# Settings that these families ignore, but the other one does not.
_IGNORED = {
    "qwen2_vl_text": ("head_dim",),  # it is hidden_size / num_attention_heads
    "qwen2_5_vl_text": ("head_dim",),
    "qwen3_vl_text": ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"),
}


def language_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of a multimodal model's decoder; `config` itself if it has no text config of its own."""
    text = config.get_text_config(decoder=True)
    if text is config or config.is_encoder_decoder:
        return config
    found = _as_other_family(text) if text.model_type in _EQUAL_TO else deepcopy(text)
    # The whole model's settings count for its output layer and its dtype.
    in_text = getattr(text, "tie_word_embeddings", False)
    found.tie_word_embeddings = getattr(config, "tie_word_embeddings", in_text)
    found.dtype = config.dtype or text.dtype
    found._commit_hash = getattr(config, "_commit_hash", None)
    return found


def _as_other_family(text: PreTrainedConfig) -> PreTrainedConfig:
    left_out = {*_NOT_COPIED, *_IGNORED.get(text.model_type, ())}
    values: dict[str, Any] = {key: value for key, value in text.to_dict().items() if key not in left_out}
    rope = values.get("rope_parameters") or {}
    values["rope_parameters"] = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    return CONFIG_MAPPING[_EQUAL_TO[text.model_type]](**values)


def language_tensor_names(language: PreTrainedConfig) -> dict[str, str]:
    """Return pattern -> replacement, to be tried in order, from names of a checkpoint to those of the language part.

    The part's prefix is language_model or text_model, with or without model around it. All other names stay.
    """
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(language)]
    base = model_class.base_model_prefix
    part = r"(?:language_model|text_model)\."
    return {
        rf"^(?:model\.)?{part}(?=lm_head\.|{base}\.)": "",
        rf"^(?:model\.)?{part}": f"{base}.",
    }
