"""A model and its tokenizer from a hub id, a local folder or a .gguf file. Every failure is a ModelError.

`inspect_model` reads the small files only, so that a job is planned, or refused, before any weight is read;
`load_weights` reads the rest. Knows checkpoints; knows nothing of KV blocks, requests or rows.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from batchgen.errors import CapacityError, ModelError
from batchgen.models.checkpoint import (
    Checkpoint,
    as_model_error,
    find_checkpoint,
    json_file,
    read_json,
    refuse_adapter,
)
from batchgen.models.device import available_memory, has_bfloat16
from batchgen.models.end_tokens import describe_difference, folder_end_tokens, gguf_end_tokens
from batchgen.models.gguf_file import Header, parsed_once, read_header, refuse_gguf, split_like_original
from batchgen.models.library_output import as_loud_as_the_log, load_report_only_if_it_fails
from batchgen.models.multimodal import language_config, language_tensor_names
from batchgen.models.support import refuse_unsupported
from batchgen.spec.job_spec import ModelSpec
from batchgen.units import format_gib

log = logging.getLogger("batchgen")

# Names of the context length in the configs of different families, the usual name first.
_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True, eq=False)
class ModelInfo:
    """What is known about a model before its weights are read."""

    path: str  # model.path of the job file
    config: PreTrainedConfig  # of the language part, if the checkpoint is multimodal
    is_language_part: bool  # of a multimodal checkpoint, of which nothing else is loaded
    tokenizer: PreTrainedTokenizerFast
    generation_config: dict[str, Any]  # what generation_config.json sets, without transformers' defaults
    dtype: torch.dtype
    eos_token_ids: frozenset[int]  # empty if the model has no end token
    vocab_size: int  # length of a row of logits
    unused_token_ids: np.ndarray  # int64, ascending: in the logits but not in the tokenizer, never to be sampled
    max_model_len: int  # tokens
    family: str  # transformers' model_type
    weight_bytes: int  # of all parameters in `dtype`, tied ones counted once


def inspect_model(spec: ModelSpec, device: torch.device) -> ModelInfo:
    """Read config, tokenizer and generation config, but no tensor (of a .gguf file only the header).

    Raises ModelError if a file is missing or cannot be read, or if the model is refused (`support.py`).
    """
    checkpoint = find_checkpoint(spec)
    with parsed_once(checkpoint.gguf_file), as_loud_as_the_log():
        header = _gguf_header(checkpoint)
        whole = _config(checkpoint, spec)
        refuse_unsupported(whole, spec.allow_untested)
        tokenizer = _tokenizer(checkpoint, spec)
        if header is not None:
            split_like_original(tokenizer, header)
        config = language_config(whole)
        generation_config = json_file(checkpoint, "generation_config.json")
        dtype = _dtype(checkpoint, spec, config, device)
        if header is not None:
            end_tokens = gguf_end_tokens(header, config)
        else:
            end_tokens = folder_end_tokens(json_file(checkpoint, "config.json"), generation_config, tokenizer)
        _log_unexpected(checkpoint, whole, config, describe_difference(end_tokens, tokenizer))
        return ModelInfo(
            path=spec.path,
            config=config,
            is_language_part=config is not whole,
            tokenizer=tokenizer,
            generation_config=generation_config,
            dtype=dtype,
            eos_token_ids=frozenset().union(*end_tokens.values()),
            vocab_size=config.vocab_size,
            unused_token_ids=_unused_token_ids(config, tokenizer),
            max_model_len=_max_model_len(config),
            family=config.model_type,
            weight_bytes=_weight_bytes(checkpoint, config, dtype),
        )


def _log_unexpected(checkpoint: Checkpoint, whole: PreTrainedConfig, config: PreTrainedConfig, end: str | None) -> None:
    """Log what a user may not expect: which snapshot is used, that images are not read, end tokens that differ."""
    if checkpoint.snapshot is not None:
        log.info("%s: its snapshot %s is used", checkpoint.name, checkpoint.snapshot)
    if config is not whole:
        words = "%s is multimodal (%s): only its language part (%s) is loaded; images, audio and video are not read"
        log.info(words, checkpoint.name, whole.model_type, config.model_type)
    if end is not None:
        log.info("%s: %s", checkpoint.name, end)


def build_meta_model(info: ModelInfo, attn_implementation: str) -> PreTrainedModel:
    """Return the model on torch's meta device, without storage, to inspect its shapes; `info.config` is not changed.

    Its dtype is always bfloat16: the grouped matrix products of experts support no other on the meta device.
    """
    with as_loud_as_the_log():
        return _meta_model(info.config, torch.bfloat16, attn_implementation)


def load_weights(info: ModelInfo, spec: ModelSpec, device: torch.device, attn_implementation: str) -> PreTrainedModel:
    """Return the model on `device` in `info.dtype`, for inference only; .gguf weights are dequantised.

    Raises ModelError if files are missing or damaged, or if the checkpoint lacks weights of the model.
    """
    checkpoint = find_checkpoint(spec)
    options = checkpoint.options
    if checkpoint.gguf_file is not None:
        options["quantization_config"] = GgufConfig(dequantize=True)
    if info.is_language_part:
        options["key_mapping"] = language_tensor_names(info.config)
    with (
        as_model_error(checkpoint, "weights"),
        as_loud_as_the_log(),
        load_report_only_if_it_fails(),
        parsed_once(checkpoint.gguf_file),
    ):
        # With output_loading_info it returns the model and a report, unlike its annotation.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.location,
            config=info.config,
            dtype=info.dtype,
            attn_implementation=attn_implementation,
            output_loading_info=True,
            **options,
        )
        model, report = loaded
        _refuse_incomplete(checkpoint, report["missing_keys"])
        unused = report["unexpected_keys"]
        if unused and not info.is_language_part:
            log.info("%d tensors of the checkpoint are not used, among them %s", len(unused), min(unused))
        return model.requires_grad_(False).eval().to(device)  # type: ignore[no-any-return]


def check_weights_fit(info: ModelInfo, device: torch.device, fraction: float) -> None:
    """Raise CapacityError if the weights alone exceed `fraction` of the memory that is available on `device`."""
    available = available_memory(device)
    if info.weight_bytes > fraction * available:
        dtype = str(info.dtype).removeprefix("torch.")
        raise CapacityError(
            f"the model itself does not fit on {device}, even without KV blocks: the weights of {info.path} take "
            f"{format_gib(info.weight_bytes)} in {dtype}, and of the {format_gib(available)} available only "
            f"{format_gib(fraction * available)} may be used (engine.memory_fraction: {fraction}). Choose a smaller "
            f"model, a larger device, a smaller model.dtype, or raise engine.memory_fraction."
        )


def _config(checkpoint: Checkpoint, spec: ModelSpec) -> PreTrainedConfig:
    with as_model_error(checkpoint, "config"):
        refuse_adapter(checkpoint, read_json(checkpoint, "adapter_config.json"))
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            checkpoint.location, trust_remote_code=spec.trust_remote_code, **checkpoint.options
        )
        if spec.trust_remote_code:
            _register_own_class(checkpoint, config)
    return config


def _register_own_class(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Register a model class that comes with the checkpoint, so that the class inspected is the one that runs."""
    reference = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if reference is not None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        model_class = get_class_from_dynamic_module(reference, checkpoint.location, **checkpoint.options)
        AutoModelForCausalLM.register(type(config), model_class, exist_ok=True)


def _tokenizer(checkpoint: Checkpoint, spec: ModelSpec) -> PreTrainedTokenizerFast:
    with as_model_error(checkpoint, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.location, trust_remote_code=spec.trust_remote_code, **checkpoint.options
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"model.path {spec.path}: its tokenizer ({type(tokenizer).__name__}) is not a fast one; a tokenizer.json "
            "(of the tokenizers library) is needed"
        )
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what transformers returns without files
        raise ModelError(f"model.path {spec.path} has no tokenizer files; a tokenizer.json is needed")
    if not tokenizer.chat_template:  # older multimodal checkpoints have it in a file of their processor
        tokenizer.chat_template = json_file(checkpoint, "chat_template.json").get("chat_template")
    return tokenizer


def _gguf_header(checkpoint: Checkpoint) -> Header | None:
    if checkpoint.gguf_file is None:
        return None
    with as_model_error(checkpoint, "header"):
        header = read_header(checkpoint.gguf_file)
        refuse_gguf(checkpoint.name, header)
    return header


def _dtype(checkpoint: Checkpoint, spec: ModelSpec, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    if spec.dtype != "auto":
        return _torch_dtype(spec.dtype)
    if checkpoint.gguf_file is not None:
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return _torch_dtype(config.dtype or torch.float32)


def _torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _unused_token_ids(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    used = np.fromiter(tokenizer.get_vocab().values(), np.int64)
    return np.setdiff1d(np.arange(config.vocab_size), used)


def _max_model_len(config: PreTrainedConfig) -> int:
    for name in _LENGTH_NAMES:
        length = getattr(config, name, None)
        if isinstance(length, int):
            return length
    raise ModelError(f"the config of this {config.model_type} model states no context length ({_LENGTH_NAMES[0]})")


def _weight_bytes(checkpoint: Checkpoint, config: PreTrainedConfig, dtype: torch.dtype) -> int:
    with as_model_error(checkpoint, "config"):
        return sum(parameter.nbytes for parameter in _meta_model(config, dtype, "eager").parameters())


def _meta_model(config: PreTrainedConfig, dtype: torch.dtype, attn_implementation: str) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            deepcopy(config),  # transformers writes dtype and attention into the config it is given
            dtype=dtype,
            attn_implementation=attn_implementation,
        )
    return model


def _refuse_incomplete(checkpoint: Checkpoint, missing: set[str]) -> None:
    """Refuse a checkpoint that lacks weights, which transformers would fill with random values."""
    if missing:
        raise ModelError(
            f"model.path {checkpoint.name}: its weights lack {len(missing)} tensors of the model, among them "
            f"{min(missing)}"
        )
