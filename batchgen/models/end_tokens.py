"""The end tokens of a checkpoint: the union of what its files declare. Knows declarations; reads no file.

After a fine-tuning, some files of a checkpoint may still declare the end token of its base model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from batchgen.models.gguf_file import Header

_GGUF_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))

Declared = Mapping[str, frozenset[int]]  # source, such as config.json -> the ids that it declares, at least one


def folder_end_tokens(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast
) -> Declared:
    """Return the end tokens of the files of a folder or a hub id, given what the files themselves contain.

    The objects of transformers do not do: where config.json declares nothing, its class fills in a default.
    """
    text_config = config.get("text_config") or {}
    in_config = _ids(config.get("eos_token_id")) | _ids(text_config.get("eos_token_id"))
    found = {
        "config.json": in_config,
        "generation_config.json": _ids(generation_config.get("eos_token_id")),
        "the tokenizer": _ids(_tokenizers_own(tokenizer)),
    }
    return {source: ids for source, ids in found.items() if ids}


def gguf_end_tokens(header: Header, config: PreTrainedConfig) -> Declared:
    """Return the end tokens of a .gguf file: of a text, a turn and a message, and those that transformers adds."""
    found = {key: frozenset([int(header[key])]) for key in _GGUF_KEYS if key in header}
    # Where the header declares none, the config contains the default of its class.
    return {**found, "transformers' config": _ids(config.eos_token_id)} if _GGUF_KEYS[0] in header else found


def describe_difference(declared: Declared, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Return what each source declares, in one line; None if all declare the same."""
    if len(set(declared.values())) < 2:
        return None
    sources = (f"{source}: {_names(ids, tokenizer)}" for source, ids in declared.items())
    return f"the end tokens differ, so a completion ends at any of them ({'; '.join(sources)})"


def _names(ids: Iterable[int], tokenizer: PreTrainedTokenizerFast) -> str:
    return ", ".join(
        f"{tokenizer.backend_tokenizer.id_to_token(token) or '(no text)'} {token}" for token in sorted(ids)
    )


def _tokenizers_own(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """Return the id of tokenizer_config.json's eos_token; None if the tokenizer lacks it or has none."""
    token = tokenizer.eos_token
    return None if token is None else tokenizer.backend_tokenizer.token_to_id(str(token))


def _ids(value: int | list[int] | None) -> frozenset[int]:
    """Return the token ids of a setting that is absent, one id or several ids; -1 stands for none in some configs."""
    ids = [] if value is None else [value] if isinstance(value, int) else value
    return frozenset(token for token in ids if token >= 0)
