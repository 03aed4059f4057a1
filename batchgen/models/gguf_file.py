"""A .gguf file: its header, the parts of a split one, and how its tokenizer splits text. Reads no tensor.

`parsed_once` has the gguf package parse the header once. transformers would have it parsed for the config, the
tokenizer and the weights each, and the table of tensor names built for every module; it knows nothing of split files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchgen.errors import ModelError

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)  # the names that llama.cpp gives and expects

# Values of tokenizer.ggml.pre, which says how text is split before merges apply. transformers has a table of its own
# (`_known_to_transformers`) and splits like GPT-2 whatever is not in it. llama.cpp (llama-vocab.cpp) does so for these:
_LIKE_GPT2 = frozenset({
    "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe",
    "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling",
})  # fmt: skip
# and these too, but with every digit apart.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})

log = logging.getLogger("batchgen")

Header = Mapping[str, Any]  # the single values of a header by their keys; lists, such as the vocabulary, are left out


class Parts(NamedTuple):
    """The names of a split file's parts in their folder."""

    names: Sequence[str]
    missing: Sequence[str]


def find_parts(path: Path) -> Parts:
    """Return the parts of the file that `path` is a part of, the first one first; a file that is not split is one part.

    Only the name says that a file is a part.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return Parts([path.name], [])
    stem, _, count = match.groups()
    names = [f"{stem}-{part:05}-of-{count}.gguf" for part in range(1, int(count) + 1)]
    return Parts(names, [name for name in names if not (path.parent / name).is_file()])


@contextmanager
def parsed_once(file: Path | None) -> Iterator[None]:
    """Cache the results of the gguf package's parsers in the block; with None, for other checkpoints, do nothing."""
    if file is None:
        yield
        return
    import gguf  # an optional dependency, and slow to import

    reader, table = cache(partial(_read_parts, _fast_reader(gguf.GGUFReader))), cache(gguf.get_tensor_name_map)
    with patched(gguf, "GGUFReader", reader), patched(gguf, "get_tensor_name_map", table):
        yield


def _read_parts(reader: Any, path: str) -> Any:
    """Return the reader of a file's first part, which has the whole header, with the tensors of all parts."""
    file = Path(path)
    first, *others = find_parts(file).names
    found = reader(path)
    if file.name == first:
        found.tensors.extend(tensor for name in others for tensor in reader(str(file.with_name(name))).tensors)
    return found


def read_header(file: Path) -> Header:
    """Return the header of a file, or of the first part of a split one. Call it within `parsed_once`."""
    import gguf

    fields = gguf.GGUFReader(str(file)).fields.values()
    return {field.name: _value(field) for field in fields if field.types and field.types[0] != gguf.GGUFValueType.ARRAY}


def _value(field: Any) -> Any:
    value = field.parts[field.data[0]]
    return bytes(value).decode("utf-8", "replace") if field.types[0].name == "STRING" else value[0].item()


def refuse_gguf(name: str, header: Header) -> None:
    """Raise ModelError for a file that is no text generator, or whose tokenizer would split text in another way."""
    kind = header.get("general.type", "model")
    if kind == "adapter":
        raise ModelError(f"model.path {name} is a LoRA adapter; merge it into its base model (llama-export-lora) first")
    if kind != "model":
        raise ModelError(f"model.path {name} is no model: its header says general.type {kind}")
    if header.get(f"{header['general.architecture']}.pooling_type"):
        raise ModelError(f"model.path {name} does not generate text: it is an embedding or reranking model")
    if header.get("split.count", 0) > 1 and len(find_parts(Path(name)).names) == 1:
        raise ModelError(
            f"model.path {name} is a part of a split model under another name; restore the names that end in "
            f"-00001-of-{header['split.count']:05}.gguf, or join the parts (llama-gguf-split --merge)"
        )
    splitting = header.get("tokenizer.ggml.pre", "default")
    known = {*_known_to_transformers(), *_LIKE_GPT2, *_SINGLE_DIGITS, "default"}
    if header.get("tokenizer.ggml.model") == "gpt2" and splitting not in known:
        raise ModelError(
            f"model.path {name}: how its tokenizer splits text (tokenizer.ggml.pre: {splitting}) is not known here, "
            "so its tokens would differ from those it was trained with; use the original checkpoint with its "
            "tokenizer.json, or a newer version of transformers"
        )


def _known_to_transformers() -> frozenset[str]:
    try:
        module = import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
        return frozenset(module.GGUF_PRE_TOKENIZER_SPLITS)
    except (ImportError, AttributeError):
        return frozenset({"qwen2"})  # older versions choose by the architecture, right for this one


def split_like_original(tokenizer: PreTrainedTokenizerFast, header: Header) -> None:
    """Have the tokenizer split text as the header says, where transformers does not."""
    if header.get("tokenizer.ggml.model") != "gpt2":
        return
    if header.get("tokenizer.ggml.pre", "default") == "default":
        log.warning(
            "the .gguf file does not say how its tokenizer splits text (tokenizer.ggml.pre): GPT-2's way is used"
        )
    if header.get("tokenizer.ggml.pre") in _SINGLE_DIGITS:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


@contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace `module.name` by `value` in the block."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _fast_reader(reader: Any) -> Any:
    class FastReader(reader):  # type: ignore[misc]
        """Slices the mapped file as a plain array: numpy's bookkeeping of memory maps took two thirds of the time."""

        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._data = np.asarray(mapped)

    return FastReader
