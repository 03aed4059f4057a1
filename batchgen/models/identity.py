"""Identity: short texts, to be stored and compared, that differ where a model's completions may differ.

Reads no weights: a weight file is identified by its size and modification time, a model of the hub by its commit.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from batchgen.models.checkpoint import Checkpoint, find_checkpoint
from batchgen.models.load import ModelInfo
from batchgen.spec.job_spec import ModelSpec

_NO_CONTENT = ("_name_or_path", "transformers_version")


def model_identity(info: ModelInfo, spec: ModelSpec) -> dict[str, str]:
    """Return key -> value for path, dtype, and content of config, tokenizer, chat template and weights.

    Call it before `info.tokenizer` is used: a tokenizer's state contains the options of its last call.
    """
    tokenizer = info.tokenizer
    config = {key: value for key, value in info.config.to_dict().items() if key not in _NO_CONTENT}
    return {
        "model.path": spec.path,
        "model.dtype": str(info.dtype).removeprefix("torch."),
        "model config": _digest(config),
        "model generation_config": _digest(info.generation_config),
        "model tokenizer": _digest([tokenizer.backend_tokenizer.to_str(), tokenizer.special_tokens_map]),
        "model chat template": _digest(tokenizer.chat_template),
        **_weights(info, find_checkpoint(spec)),
    }


def _weights(info: ModelInfo, checkpoint: Checkpoint) -> dict[str, str]:
    if not checkpoint.is_local:
        return {"model commit": str(getattr(info.config, "_commit_hash", None))}
    states = {file.name: file.stat() for file in checkpoint.weight_files}
    return {
        f"model weights {name}": f"{state.st_size} bytes of time {state.st_mtime_ns}" for name, state in states.items()
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Return a set as a sorted list, so that the hashes of this process do not matter; anything else as text."""
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
