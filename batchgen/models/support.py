"""Which models can be run exactly, judged from the config and the source of the model class before weights are read.

Each check is a function from a `Candidate` to the reason for refusing it, or None; `model.allow_untested` does not skip
them. `probe.py` checks what only a forward shows: calls per layer, arguments of the attention call.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from batchgen.errors import ModelError
from batchgen.models.multimodal import TESTED_MULTIMODAL, language_config
from batchgen.models.rope import rope_settings

# Families whose greedy tokens are compared with transformers' own `generate` in the tests (tests/families);
# docs/models.md lists them.
TESTED_FAMILIES = frozenset({
    "afmoe", "apertus", "arcee", "biogpt", "bitnet", "codegen", "cohere", "cohere2", "cwm", "deepseek_v2",
    "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe", "flex_olmo", "gemma",
    "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "helium",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "internlm3", "jais2", "llama", "mimo_v2_flash",
    "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nanochat",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
    "vaultgemma", "youtu",
})  # fmt: skip

_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Sub-configs of a text decoder that do not describe a second model.
_SUB_CONFIGS = {"attn_config", "ffn_config"}
_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # how the names of their classes end
_PREFIX_ATTENTION = {"paligemma"}
_MODALITIES = ("vision_config", "audio_config", "image_config", "video_config", "speech_config")
_ATTENTION_CALL = re.compile(r"\battention_interface\((.*?)\n\s+\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config and the model class that would be built from it."""

    config: PreTrainedConfig
    model_class: type | None  # None if transformers has no causal language model of this kind
    source: str  # source code of the modules of the class; empty without a class

    def get(self, name: str) -> Any:
        """Return a setting of the config, or None if it has no such setting."""
        return getattr(self.config, name, None)


def refuse_unsupported(config: PreTrainedConfig, allow_untested: bool) -> None:
    """Raise ModelError, with the family and the reason, unless the model can be run exactly. Reads no weights.

    Of a multimodal model this is asked of its language part. A family outside TESTED_FAMILIES passes only with
    `allow_untested`; a multimodal one outside TESTED_MULTIMODAL too, if its language part is in TESTED_FAMILIES.
    """
    language = language_config(config)
    _refuse_if_any(f"model family {config.model_type}", CHECKS_OF_ALL, _candidate(config))
    if language is config:
        name, is_tested = f"model family {config.model_type}", config.model_type in TESTED_FAMILIES
    else:
        name = f"the language part ({language.model_type}) of the multimodal model family {config.model_type}"
        is_tested = config.model_type in TESTED_MULTIMODAL
    _refuse_if_any(name, CHECKS, _candidate(language))
    if language is not config and language.model_type not in TESTED_FAMILIES:
        raise ModelError(f"{name} has no parity test in batchgen, so the family is refused (docs/models.md).")
    if not is_tested and not allow_untested:
        raise ModelError(
            f"model family {config.model_type} has no parity test in batchgen (docs/models.md lists the families that "
            f"have one{_similar_families(config.model_type)}). To run it anyway, set model.allow_untested: true."
        )


def _refuse_if_any(name: str, checks: Sequence[Check], candidate: Candidate) -> None:
    """Raise ModelError with the reason of the first check that has one."""
    for check in checks:
        reason = check(candidate)
        if reason is not None:
            raise ModelError(f"{name} cannot be run exactly, so it is refused: {reason}.")


def _similar_families(family: str) -> str:
    """Return the tested families with the most similar names, as the rest of a sentence."""
    found = get_close_matches(family, TESTED_FAMILIES | TESTED_MULTIMODAL)
    return f", such as {' and '.join(found)}" if found else ""


def _candidate(config: PreTrainedConfig) -> Candidate:
    model_class = _model_class(config)
    # Of the class and its bases, but not the base of all models, which mentions the attention interface for all.
    modules = dict.fromkeys(base.__module__ for base in model_class.__mro__) if model_class else {}
    own = [name for name in modules if name.startswith(("transformers.models.", "transformers_modules."))]
    return Candidate(config, model_class, "".join(inspect.getsource(sys.modules[name]) for name in own))


def _model_class(config: PreTrainedConfig) -> type | None:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _no_generator(candidate: Candidate) -> str | None:
    names = candidate.get("architectures") or []
    if not names or any(map(_generates, names)):
        return None
    own_class = (candidate.get("auto_map") or {}).get("AutoModelForCausalLM", "").rpartition(".")[2]
    if own_class and any(name == own_class or name.endswith("Model") for name in names):  # as in ChatGLMModel
        return None
    return f"its architecture in config.json is {' and '.join(names)}, which does not generate text"


def _generates(architecture: str) -> bool:
    return architecture.endswith(_GENERATORS) or architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _prefix_attention(candidate: Candidate) -> str | None:
    if candidate.config.model_type not in _PREFIX_ATTENTION:
        return None
    return "the tokens of its prompts attend to later ones"


def _quantised_weights(candidate: Candidate) -> str | None:
    settings = candidate.get("quantization_config") or candidate.get("compression_config")
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings.quant_method
    return f"its weights are quantised ({method}); only unquantised weights and .gguf files can be read"


def _encoder_decoder(candidate: Candidate) -> str | None:
    return "it is an encoder-decoder model" if candidate.config.is_encoder_decoder else None


def _multimodal(candidate: Candidate) -> str | None:
    parts = {name for name in candidate.config.sub_configs if name not in _SUB_CONFIGS}
    parts |= {name for name in _MODALITIES if candidate.get(name) is not None}
    if not parts:
        return None
    return f"it is multimodal or combines several models ({', '.join(sorted(parts))})"


def _no_causal_class(candidate: Candidate) -> str | None:
    return None if candidate.model_class else "transformers has no causal language model class for it"


def _bidirectional(candidate: Candidate) -> str | None:
    if candidate.get("use_bidirectional_attention") in (True, "all") or candidate.get("is_causal") is False:
        return "its config turns on attention to later tokens"
    may_encode = "config.is_decoder" in candidate.source and "create_bidirectional_mask" in candidate.source
    if may_encode and not candidate.get("is_decoder"):
        return "it is an encoder (is_decoder is not set), whose tokens attend to later tokens"
    return None


def _state_outside_kv_cache(candidate: Candidate) -> str | None:
    stateful = getattr(candidate.model_class, "_is_stateful", False)
    if stateful or "create_recurrent_attention_mask" in candidate.source:
        return "it has recurrent, convolutional or hybrid layers, whose state is not in the KV cache"
    unsupported = set(candidate.get("layer_types") or ()) - _SUPPORTED_LAYER_TYPES
    if not unsupported:
        return None
    return f"it has {', '.join(sorted(unsupported))} layers; only full and sliding attention are supported"


def _no_attention_interface(candidate: Candidate) -> str | None:
    if "ALL_ATTENTION_FUNCTIONS" in candidate.source:
        return None
    return "its attention does not use the attention interface of transformers, so its KV cache cannot be paged"


def _window_only_in_mask(candidate: Candidate) -> str | None:
    if candidate.get("attention_chunk_size"):
        return "its attention chunks are applied only by the attention mask, which batchgen does not build"
    has_window = candidate.get("sliding_window") or "sliding_attention" in (candidate.get("layer_types") or ())
    is_passed = any("sliding_window=" in call for call in _ATTENTION_CALL.findall(candidate.source))
    if has_window and not is_passed and "sliding_window" in candidate.source:
        return "its sliding window is applied only by the attention mask, which batchgen does not build"
    return None


def _batch_dependent_rope(candidate: Candidate) -> str | None:
    for rope in rope_settings(candidate.config):
        kind = rope.get("rope_type", rope.get("type"))
        if isinstance(kind, str) and "dynamic" in kind:
            return f"its rotary embedding ({kind}) depends on the longest position in the batch"
        if kind == "longrope" and "long_mscale" in candidate.source:  # otherwise rope.py chooses the factors once
            return "its rotary embedding (longrope) is scaled by the longest position in the batch"
    return None


Check = Callable[[Candidate], str | None]

CHECKS_OF_ALL: tuple[Check, ...] = (_no_generator, _encoder_decoder, _prefix_attention, _quantised_weights)
CHECKS: tuple[Check, ...] = (
    _multimodal,
    _no_causal_class,
    _state_outside_kv_cache,
    _no_attention_interface,
    _bidirectional,
    _window_only_in_mask,
    _batch_dependent_rope,
)
