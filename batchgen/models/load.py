"""A model and its tokenizer from a hub id, a local folder or a .gguf file. Every failure is a ModelError.

`inspect_model` reads the small files only, so that a job is planned, or refused, before any weight is read;
`load_weights` reads the rest. Knows checkpoints; knows nothing of KV blocks, requests or rows.
"""

from __future__ import annotations

import json
import logging
import re
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
    modeling_utils,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from batchgen.errors import CapacityError, ModelError
from batchgen.models.checkpoint import Checkpoint, as_model_error, cached_gguf_parsing, find_checkpoint, patched
from batchgen.models.device import available_memory, has_bfloat16
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
    config: PreTrainedConfig
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
    with cached_gguf_parsing(checkpoint):
        config = _config(checkpoint, spec)
        refuse_unsupported(config, spec.allow_untested)
        tokenizer = _tokenizer(checkpoint, spec)
    generation_config = _json_file(checkpoint, "generation_config.json")
    dtype = _dtype(checkpoint, spec, config, device)
    # The ids of both files count, as either may lack the end-of-turn token; the tokenizer's only if neither has any.
    eos_token_ids = _ids(_eos_in_config(checkpoint, config)) | _ids(generation_config.get("eos_token_id"))
    return ModelInfo(
        path=spec.path,
        config=config,
        tokenizer=tokenizer,
        generation_config=generation_config,
        dtype=dtype,
        eos_token_ids=eos_token_ids or _ids(tokenizer.eos_token_id),
        vocab_size=config.vocab_size,
        unused_token_ids=_unused_token_ids(config, tokenizer),
        max_model_len=_max_model_len(config),
        family=config.model_type,
        weight_bytes=_weight_bytes(checkpoint, config, dtype),
    )


def build_meta_model(info: ModelInfo, attn_implementation: str) -> PreTrainedModel:
    """Return the model on torch's meta device, without storage, to inspect its shapes; `info.config` is not changed.

    Its dtype is always bfloat16: the grouped matrix products of experts support no other on the meta device.
    """
    return _meta_model(info.config, torch.bfloat16, attn_implementation)


def load_weights(info: ModelInfo, spec: ModelSpec, device: torch.device, attn_implementation: str) -> PreTrainedModel:
    """Return the model on `device` in `info.dtype`, for inference only; .gguf weights are dequantised.

    Raises ModelError if files are missing or damaged, or if the checkpoint lacks weights of the model.
    """
    checkpoint = find_checkpoint(spec)
    options = checkpoint.options
    if checkpoint.gguf_file is not None:
        options["quantization_config"] = GgufConfig(dequantize=True)
    with (
        as_model_error(checkpoint, "weights"),
        _loading_bars_on_terminal_only(),
        _load_report_only_if_it_fails(),
        cached_gguf_parsing(checkpoint),
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
        if unused := report["unexpected_keys"]:
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
    return tokenizer


def _json_file(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return the values of a JSON file of the checkpoint but for nulls; {} without the file, or for a .gguf file."""
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


def _eos_in_config(checkpoint: Checkpoint, config: PreTrainedConfig) -> Any:
    """Return the end tokens of config.json itself: where it has none, its config class fills in a default."""
    if checkpoint.gguf_file is not None:
        return config.eos_token_id
    return _json_file(checkpoint, "config.json").get("eos_token_id")


def _ids(value: int | list[int] | None) -> frozenset[int]:
    """Return the token ids of a setting that is absent, one id or several ids."""
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
    """Refuse a checkpoint that lacks weights, which transformers would fill with random values."""
    if missing:
        raise ModelError(
            f"model.path {checkpoint.name}: its weights lack {len(missing)} tensors of the model, among them "
            f"{min(missing)}"
        )


@contextmanager
def _loading_bars_on_terminal_only() -> Iterator[None]:
    """Show transformers' loading bars on a terminal only, and clear them at the end; its warnings are not affected."""
    quiet = {"disable": None, "leave": False}  # None: tqdm shows a bar only if stderr is a terminal

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return factory(*args, **{**kwargs, **quiet})

    gguf_loader: Any = modeling_gguf_pytorch_utils  # transformers' hook does not reach its bar
    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        with patched(gguf_loader, "tqdm", partial(gguf_loader.tqdm, **quiet)):
            yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


@contextmanager
def _load_report_only_if_it_fails() -> Iterator[None]:
    """Hold back transformers' report of tensors, to which the message of a failed conversion refers."""
    logger, reports = logging.getLogger(modeling_utils.__name__), []

    def hold_back(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in record.getMessage():
            return True
        reports.append(re.sub("\x1b\\[[0-9;]*m", "", record.getMessage()))
        return False

    logger.addFilter(hold_back)
    try:
        yield
    except Exception:
        for report in reports:
            log.warning("%s", report)
        raise
    finally:
        logger.removeFilter(hold_back)
