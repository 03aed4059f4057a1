"""The families that are held to transformers' own `generate`, and how their models are made.

docs/models.md and TESTED_FAMILIES are held to this registry. No model here has sensible weights; all of them look at
their whole context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.families.dense import DENSE
from tests.families.experts import EXPERTS
from tests.families.family import Family, Settings
from tests.tiny_models import VOCAB_SIZE

FAMILIES: Mapping[str, Family] = {**DENSE, **EXPERTS}  # by transformers' model_type

# What families with other names for these sizes do not take from `_SIZES`.
_OLD_SIZES: Settings = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
_SIZES: Settings = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_SIZES_OF: Mapping[str, Settings] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "codegen"), _OLD_SIZES),
}
_IDS: Settings = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def tiny_config(model_type: str, overrides: Settings | None = None) -> PreTrainedConfig:
    """The registered configuration, some of its settings changed."""
    sizes = _SIZES_OF.get(model_type, _SIZES)
    settings: dict[str, Any] = {**_IDS, **sizes, **FAMILIES[model_type].settings, **(overrides or {})}
    return AutoConfig.for_model(model_type, **settings)


def tiny_family(model_type: str) -> PreTrainedModel:
    """The registered model with random weights in float32; nothing is left at 0 or 1, no token ends its output.

    Eager attention, since transformers' `sdpa` leaves soft caps and sinks out.
    """
    model = _build(tiny_config(model_type))
    generator = torch.Generator().manual_seed(0)
    std = FAMILIES[model_type].std
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(std * noise if parameter.ndim > 1 else parameter + 0.3 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    model.generation_config.eos_token_id = None
    return model


def without(model: PreTrainedModel, off: Settings) -> PreTrainedModel:
    """The same weights under a config in which `off` turns something off."""
    changed = _build(tiny_config(model.config.model_type, off))
    changed.load_state_dict(model.state_dict(), strict=False)
    return changed


def _build(config: PreTrainedConfig) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()  # type: ignore[no-untyped-call,no-any-return]
