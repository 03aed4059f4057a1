"""A model and its tokenizer from a hub id, a local folder or a .gguf file; every failure in the user's words.

`inspect_model` reads the small files only, so that a job is planned, or refused, before any weight is read;
`load_weights` reads the rest. Knows checkpoints; knows nothing of KV blocks, requests or rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
    modeling_gguf_pytorch_utils,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from batchgen.errors import CapacityError, ModelError
from batchgen.models.checkpoint import Checkpoint, as_model_error, find_checkpoint, parsed_once, patched
from batchgen.models.device import available_memory, has_bfloat16
from batchgen.models.support import refuse_unsupported
from batchgen.spec.job_spec import ModelSpec
from batchgen.units import format_gib

# What families call the number of positions they were trained for, the usual name first.
_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True, eq=False)
class ModelInfo:
    """What is known of a model before its weights are read."""

    path: str  # as the job names it
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast
    generation_config: dict[str, Any]  # what the checkpoint's generation_config.json sets, nothing else
    dtype: torch.dtype
    eos_token_ids: frozenset[int]  # empty: the model has no end token
    vocab_size: int  # of the logits
    unused_token_ids: np.ndarray  # int64, ascending: in the logits but not in the tokenizer, never to be sampled
    max_model_len: int  # tokens
    family: str  # transformers' model_type
    weight_bytes: int  # of all parameters in `dtype`, tied ones once


def inspect_model(spec: ModelSpec, device: torch.device) -> ModelInfo:
    """Read config, tokenizer and generation config; no tensor (of a .gguf file, its header).

    Raises ModelError: not found, not readable, or refused (`support.py`).
    """
    checkpoint = find_checkpoint(spec)
    with parsed_once(checkpoint):
        config = _config(checkpoint, spec)
        refuse_unsupported(config, spec.allow_untested)
        tokenizer = _tokenizer(checkpoint, spec)
    generation_config = _json_file(checkpoint, "generation_config.json")
    dtype = _dtype(checkpoint, spec, config, device)
    # Both files count, as each may lack the end of a turn; the tokenizer only where neither has any.
    ends = _ids(_end_in_config(checkpoint, config)) | _ids(generation_config.get("eos_token_id"))
    return ModelInfo(
        path=spec.path,
        config=config,
        tokenizer=tokenizer,
        generation_config=generation_config,
        dtype=dtype,
        eos_token_ids=ends or _ids(tokenizer.eos_token_id),
        vocab_size=config.vocab_size,
        unused_token_ids=_unused_token_ids(config, tokenizer),
        max_model_len=_max_model_len(config),
        family=config.model_type,
        weight_bytes=_weight_bytes(checkpoint, config, dtype),
    )


def build_meta_model(info: ModelInfo, attn_implementation: str) -> PreTrainedModel:
    """The model without storage, on torch's meta device, to see its shapes. `info.config` stays as it is.

    In bfloat16 whatever the model's own type is: the grouped products of experts have no other on that device.
    """
    return _meta_model(info.config, torch.bfloat16, attn_implementation)


def load_weights(info: ModelInfo, spec: ModelSpec, device: torch.device, attn_implementation: str) -> PreTrainedModel:
    """The model on `device` in `info.dtype`, for inference only; .gguf weights are unpacked to plain ones.

    Raises ModelError: files missing or damaged, or weights of the model that the checkpoint lacks.
    """
    checkpoint = find_checkpoint(spec)
    options = checkpoint.options
    if checkpoint.gguf_file is not None:
        options["quantization_config"] = GgufConfig(dequantize=True)
    with as_model_error(checkpoint, "weights"), _bars_only_on_a_terminal(), parsed_once(checkpoint):
        # pairs the model with a report because of output_loading_info, which the annotation does not know
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
        return model.requires_grad_(False).eval().to(device)  # type: ignore[no-any-return]


def check_weights_fit(info: ModelInfo, device: torch.device, fraction: float) -> None:
    """CapacityError if the weights alone exceed `fraction` of the memory that is available on `device`."""
    available = available_memory(device)
    if info.weight_bytes > fraction * available:
        dtype = str(info.dtype).removeprefix("torch.")
        raise CapacityError(
            f"the model itself does not fit on {device}, before any KV block: the weights of {info.path} take "
            f"{format_gib(info.weight_bytes)} in {dtype}, and of the {format_gib(available)} available only "
            f"{format_gib(fraction * available)} may be used (engine.memory_fraction: {fraction}). Choose a smaller "
            f"model, a larger device, a smaller model.dtype, or raise engine.memory_fraction."
        )


def _config(checkpoint: Checkpoint, spec: ModelSpec) -> PreTrainedConfig:
    with as_model_error(checkpoint, "config"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            checkpoint.location, trust_remote_code=spec.trust_remote_code, **checkpoint.options
        )
        if spec.trust_remote_code:
            _register_own_class(checkpoint, config)
    return config


def _register_own_class(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Make a class that only the checkpoint has known to transformers, so that what is inspected is what runs."""
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
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what transformers makes up without files
        raise ModelError(f"model.path {spec.path} has no tokenizer files; a tokenizer.json is needed")
    return tokenizer


def _json_file(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """What a JSON file of the checkpoint sets; nothing if there is no such file, as beside a .gguf file."""
    if checkpoint.gguf_file is not None:
        return {}
    with as_model_error(checkpoint, name):
        file = cached_file(
            checkpoint.location,
            name,
            **checkpoint.options,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        values = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
        return {key: value for key, value in values.items() if value is not None}


def _dtype(checkpoint: Checkpoint, spec: ModelSpec, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    if spec.dtype != "auto":
        return _torch_dtype(spec.dtype)
    if checkpoint.gguf_file is not None:
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return _torch_dtype(config.dtype or torch.float32)


def _torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _end_in_config(checkpoint: Checkpoint, config: PreTrainedConfig) -> Any:
    """The end token that the checkpoint states: where it states none, a config class fills in one of its own."""
    if checkpoint.gguf_file is not None:
        return config.eos_token_id
    return _json_file(checkpoint, "config.json").get("eos_token_id")


def _ids(value: int | list[int] | None) -> frozenset[int]:
    """The token ids of a setting that may be absent, one id, or several."""
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


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
    """transformers would go on with random values for them."""
    if missing:
        raise ModelError(
            f"model.path {checkpoint.name}: its weights lack {len(missing)} tensors of the model, among them "
            f"{min(missing)}"
        )


@contextmanager
def _bars_only_on_a_terminal() -> Iterator[None]:
    """Loading bars of transformers show on a terminal and leave no trace there; its warnings are not touched."""
    quiet = {"disable": None, "leave": False}  # None: tqdm looks whether stderr is a terminal

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return factory(*args, **{**kwargs, **quiet})

    gguf_loader: Any = modeling_gguf_pytorch_utils  # its bar is not under transformers' own switch
    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        with patched(gguf_loader, "tqdm", partial(gguf_loader.tqdm, **quiet)):
            yield
    finally:
        transformers_logging.set_tqdm_hook(previous)
