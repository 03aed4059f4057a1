"""TokenValues: sampling values given as words, ids or forms, as what chooses tokens. Knows no file and no row.

Words to the token ids they can have inside a text. Knows one tokenizer; knows no row and no sampling value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from batchgen.errors import RowError
from batchgen.prompts.grammar import Grammars
from batchgen.sampling_params import Structured
from batchgen.spec.job_spec import StructuredSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenValues:
    """Turns values of `SamplingSpec` into those of `SamplingParams`, for one model of `vocab_size` ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
        self.grammars = Grammars(tokenizer, vocab_size)
        self._words = WordIds(tokenizer)
        self._vocab_size = vocab_size
        self._convert: dict[str, Callable[[Any], Any]] = {
            "stop": tuple,
            "stop_token_ids": self._stop_token_ids,
            "logit_bias": self._logit_bias,
            "bad_words": self._bad_words,
            "structured": self._structured,
        }

    def resolve(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same keys, hashable.

        Raises RowError, beginning with the key, for what is no token of the model or no form, and ModelError where
        forms cannot be had at all.
        """
        return {name: self._convert.get(name, _unchanged)(value) for name, value in values.items()}

    def _stop_token_ids(self, token_ids: Iterable[int]) -> frozenset[int]:
        return frozenset(self._checked(f"stop_token_ids[{n}]", token_id) for n, token_id in enumerate(token_ids))

    def _logit_bias(self, bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        ids = {self._biased(text): value for text, value in bias.items()}
        if len(ids) < len(bias):
            raise RowError("logit_bias: two of its keys are one token; keep one")
        return tuple(sorted(ids.items()))

    def _biased(self, text: str) -> int:
        if text.isdecimal():  # the only form that a key of JSON or YAML has for a number
            return self._checked("logit_bias", int(text))
        token_id = self._words.single(text)
        if token_id is None:
            raise RowError(f"logit_bias: {text!r} is not one token of the model; give token ids, or use bad_words")
        return token_id

    def _bad_words(self, words: Iterable[str]) -> tuple[TokenSequence, ...]:
        return tuple(dict.fromkeys(ids for word in words for ids in self._words.sequences(word)))

    def _structured(self, spec: StructuredSpec | None) -> Structured | None:
        if spec is None:
            return None
        ((kind, value),) = spec.given.items()
        structured = Structured(kind, value if isinstance(value, str) else json.dumps(value))
        self.grammars.check(structured)
        return structured

    def _checked(self, key: str, token_id: int) -> int:
        if token_id >= self._vocab_size:
            raise RowError(f"{key}: {token_id} is no token id; the model's go from 0 to {self._vocab_size - 1}")
        return token_id


def _unchanged(value: Any) -> Any:
    return value


TokenSequence = tuple[int, ...]
_SENTINELS = ("\n", "a", ".")


class WordIds:
    """Encodes words without any token that the tokenizer adds of its own accord; control tokens in them are meant."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer

    def sequences(self, word: str) -> list[TokenSequence]:
        """Every way a word begins in a text: at its beginning, behind other text, and behind a space."""
        return [ids for ids in dict.fromkeys([*self._inside(word), *self._inside(f" {word}")]) if ids]

    def single(self, text: str) -> int | None:
        """The one token that is this text; None where it takes more, or none."""
        return next((ids[0] for ids in self._inside(text) if len(ids) == 1), None)

    def _inside(self, text: str) -> Iterator[TokenSequence]:
        """The ids of a text behind other text, if that can be told, and of a text that is the beginning."""
        for sentinel in _SENTINELS:  # a tokenizer may put a space in front of the beginning only
            head, ids = self._encode(sentinel), self._encode(sentinel + text)
            if ids[: len(head)] == head:
                yield ids[len(head) :]
                break
        yield self._encode(text)

    def _encode(self, text: str) -> TokenSequence:
        self._backend.encode_special_tokens = False
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)
