"""Encodes sampling values: texts as token ids, and the forms of `structured` as grammars. Knows no file and no row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from batchgen.errors import RowError
from batchgen.prompts.grammar import GrammarCompiler
from batchgen.prompts.text_encoder import encode_continuation
from batchgen.sampling_params import Structured
from batchgen.spec.job_spec import StructuredSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TokenSequence = tuple[int, ...]


class SamplingEncoder:
    """Converts values of `SamplingSpec` to those of `SamplingParams`, for a model with `vocab_size` token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
        self.grammars = GrammarCompiler(tokenizer, vocab_size)
        self._words = WordEncoder(tokenizer)
        self._vocab_size = vocab_size
        self._key_to_encode: dict[str, Callable[[Any], Any]] = {
            "stop": tuple,
            "stop_token_ids": self._stop_token_ids,
            "logit_bias": self._logit_bias,
            "bad_words": self._bad_words,
            "structured": self._structured,
        }

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values under the same keys, hashable.

        Raises RowError, beginning with the key, for an unknown token or a bad form, and ModelError if no form can be
        followed with this tokenizer or installation.
        """
        return {name: self._key_to_encode.get(name, _unchanged)(value) for name, value in values.items()}

    def _stop_token_ids(self, token_ids: Iterable[int]) -> frozenset[int]:
        return frozenset(self._checked_id(f"stop_token_ids[{n}]", token_id) for n, token_id in enumerate(token_ids))

    def _logit_bias(self, bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        ids = {self._biased_id(text): value for text, value in bias.items()}
        if len(ids) < len(bias):
            raise RowError("logit_bias: two of its keys are the same token; keep one")
        return tuple(sorted(ids.items()))

    def _biased_id(self, text: str) -> int:
        if text.isdecimal():  # keys of JSON and YAML mappings are text
            return self._checked_id("logit_bias", int(text))
        token_id = self._words.single_token(text)
        if token_id is None:
            raise RowError(f"logit_bias: {text!r} is not one token of the model; give token ids, or use bad_words")
        return token_id

    def _bad_words(self, words: Iterable[str]) -> tuple[TokenSequence, ...]:
        return tuple(dict.fromkeys(ids for word in words for ids in self._words.token_sequences(word)))

    def _structured(self, spec: StructuredSpec | None) -> Structured | None:
        if spec is None:
            return None
        ((kind, value),) = spec.given.items()
        structured = Structured(kind, value if isinstance(value, str) else json.dumps(value))
        self.grammars.check(structured)
        return structured

    def _checked_id(self, key: str, token_id: int) -> int:
        if token_id >= self._vocab_size:
            raise RowError(f"{key}: {token_id} is no token id; the model's go from 0 to {self._vocab_size - 1}")
        return token_id


def _unchanged(value: Any) -> Any:
    return value


class WordEncoder:
    """Encodes words as they can appear in a text, without BOS. Control strings in them are control tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer

    def token_sequences(self, word: str) -> list[TokenSequence]:
        """Return the ids of a word at the beginning of a text, after other text, and after a space, each once."""
        found = (tuple(ids) for text in (word, f" {word}") for ids in self._variants(text))
        return [ids for ids in dict.fromkeys(found) if ids]

    def single_token(self, text: str) -> int | None:
        """Return the id of the one token that is this text, or None if there is no such token."""
        return next((ids[0] for ids in self._variants(text) if len(ids) == 1), None)

    def _variants(self, text: str) -> Iterator[list[int]]:
        """Yield the ids of a text after other text, if they can be determined, and at the beginning.

        They differ for a tokenizer that puts a space in front of the beginning only.
        """
        ids = encode_continuation(self._encode, text)
        if ids is not None:
            yield ids
        yield self._encode(text)

    def _encode(self, text: str) -> list[int]:
        self._backend.encode_special_tokens = False
        return self._backend.encode(text, add_special_tokens=False).ids
