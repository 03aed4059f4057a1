"""Words to the token ids they can have inside a text. Knows one tokenizer; knows no row and no sampling value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
