"""Encodes sampling values: texts as token ids, and the forms of `structured` as grammars. Knows no file and no row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from batchgen.errors import RowError
from batchgen.prompts.detokenize import StopTexts
from batchgen.prompts.grammar import GrammarCompiler
from batchgen.prompts.text_encoder import encode_continuation
from batchgen.sampling_params import Structured
from batchgen.spec.job_spec import StructuredSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TokenSequence = tuple[int, ...]


class SamplingEncoder:
    """Converts values of `SamplingSpec` to those of `SamplingParams`, for a model with `vocab_size` token ids.

    `splits_reasoning`: the job tells thinking from answers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, *, splits_reasoning: bool = False) -> None:
        self.grammars = GrammarCompiler(tokenizer, vocab_size)
        self._words = WordEncoder(tokenizer)
        self._stop_texts = StopTexts(tokenizer)
        self._vocab_size = vocab_size
        self._splits_reasoning = splits_reasoning
        self._lacks_tokens = max(tokenizer.get_vocab().values()) >= vocab_size
        self._key_to_encode: dict[str, Callable[[Any], Any]] = {
            "stop": self._stop,
            "stop_token_ids": self._stop_token_ids,
            "logit_bias": self._logit_bias,
            "bad_words": self._bad_words,
            "structured": self._structured,
            "max_reasoning_tokens": self._max_reasoning_tokens,
        }

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values under the same keys, hashable.

        Raises RowError, beginning with the key, for an unknown token, one that the model lacks, or a bad form, and
        ModelError if no form can be followed with this tokenizer or installation.
        """
        return {name: self._key_to_encode.get(name, _unchanged)(value) for name, value in values.items()}

    def _stop(self, texts: Iterable[str]) -> tuple[str, ...]:
        stop = tuple(texts)
        for n, text in enumerate(stop):
            token_id = self._stop_texts.token_id(text)
            self._check_token_ids(f"stop[{n}]", text, () if token_id is None else (token_id,))
        return stop

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
        self._check_token_ids("logit_bias", text, (token_id,))
        return token_id

    def _bad_words(self, words: Iterable[str]) -> tuple[TokenSequence, ...]:
        return tuple(dict.fromkeys(ids for n, word in enumerate(words) for ids in self._bad_word(n, word)))

    def _bad_word(self, number: int, word: str) -> list[TokenSequence]:
        sequences = self._words.token_sequences(word)
        for token_ids in sequences:
            self._check_token_ids(f"bad_words[{number}]", word, token_ids)
        return sequences

    def _structured(self, spec: StructuredSpec | None) -> Structured | None:
        if spec is None:
            return None
        ((kind, value),) = spec.given.items()
        structured = Structured(kind, value if isinstance(value, str) else json.dumps(value))
        for text in _texts_of(structured) if self._lacks_tokens else ():
            self._check_token_ids(f"structured.{kind}", text, self._words.encode(text))
        self.grammars.check(structured)
        return structured

    def _max_reasoning_tokens(self, num_tokens: int | None) -> int | None:
        if num_tokens is not None and not self._splits_reasoning:
            raise RowError("max_reasoning_tokens: the job keeps thinking in the completion; set output.reasoning")
        return num_tokens

    def _checked_id(self, key: str, token_id: int) -> int:
        if token_id >= self._vocab_size:
            raise RowError(f"{key}: {token_id} is no token id; the model's go from 0 to {self._vocab_size - 1}")
        return token_id

    def _check_token_ids(self, key: str, text: str, token_ids: Iterable[int]) -> None:
        """Raise RowError if one of a text's tokens is none of the model's: the tokenizer has more than the model."""
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                ids = f"the model's ids go from 0 to {self._vocab_size - 1}"
                raise RowError(f"{key}: {text!r} has token {token_id} of the tokenizer; {ids}")


def _texts_of(structured: Structured) -> Iterator[str]:
    """Yield the texts in a form: its keys and values, if it is JSON, else the form itself."""
    if structured.kind in ("json_schema", "choice"):
        yield from _texts_in(json.loads(structured.text))
    else:
        yield structured.text


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts_in([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)


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
        ids = encode_continuation(self.encode, text)
        if ids is not None:
            yield ids
        yield self.encode(text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a word at the beginning of a text."""
        self._backend.encode_special_tokens = False
        return self._backend.encode(text, add_special_tokens=False).ids
