"""The families whose outputs are compared with transformers' own `generate`, and how their models are built.

docs/models.md and TESTED_FAMILIES must agree with this registry. All models have random weights with which the outputs
depend on the whole context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from batchgen.errors import ModelError
from batchgen.models.support import refuse_unsupported
from tests.families.dense import DENSE
from tests.families.experts import EXPERTS
from tests.families.family import Family, Settings
from tests.tiny_models import VOCAB_SIZE

FAMILIES: Mapping[str, Family] = {**DENSE, **EXPERTS}  # by transformers' model_type

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
_WITH_OLD_SIZES = {"gpt2", "gpt_bigcode", "gptj", "codegen"}
_IDS: Settings = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def tiny_config(model_type: str, overrides: Settings | None = None) -> PreTrainedConfig:
    """Return the registered configuration with some of its settings changed."""
    return AutoConfig.for_model(model_type, **{**settings_of(model_type), **(overrides or {})})


def settings_of(model_type: str) -> dict[str, Any]:
    """Return all settings of the registered configuration."""
    sizes = _OLD_SIZES if model_type in _WITH_OLD_SIZES else _SIZES
    return {**_IDS, **sizes, **FAMILIES[model_type].settings}


def tiny_family(model_type: str, overrides: Settings | None = None) -> PreTrainedModel:
    """Return the registered model with random float32 weights, none of them at its default; no token ends its output.

    The attention is eager, since transformers' `sdpa` ignores soft caps and sinks.
    """
    family = FAMILIES[model_type]
    torch.manual_seed(family.seed)  # some families draw one-dimensional parameters too
    model = _build(tiny_config(model_type, overrides))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(family.std * noise if parameter.ndim > 1 else parameter + 0.3 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape))
    model.generation_config.eos_token_id = None
    return model


def with_config(model: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model of another config with the same weights, as far as it has them."""
    changed = _build(config)
    changed.load_state_dict(model.state_dict(), strict=False)
    changed.generation_config.eos_token_id = None
    return changed


def _build(config: PreTrainedConfig) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()  # type: ignore[no-untyped-call,no-any-return]


def _is_available(model_type: str) -> bool:
    """Return whether the installed transformers has the family, with an attention that can be replaced."""
    if model_type not in CONFIG_MAPPING:
        return False
    try:
        refuse_unsupported(tiny_config(model_type), allow_untested=True)
    except ModelError:
        return False
    return True


AVAILABLE = [model_type for model_type in FAMILIES if _is_available(model_type)]
