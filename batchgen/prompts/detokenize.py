"""Token ids back to text, and stop strings found in text that is still growing. Knows no row and no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchgen.prompts.control_tokens import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Turns token ids into text. Special tokens, and ids that the tokenizer lacks, are no text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._text_ids = frozenset(tokenizer.get_vocab().values()) - special_tokens(tokenizer).keys()

    def is_text(self, token_id: int) -> bool:
        """Whether the token adds to the text."""
        return token_id in self._text_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 (yet) become U+FFFD."""
        ids = [token_id for token_id in token_ids if token_id in self._text_ids]
        text = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class StopMatcher:
    """Watches one completion for its stop strings.

    The text of special tokens is not part of the text that is searched. A character whose bytes are still incomplete
    waits for the token that completes it.

    A stop string of n bytes that ends in the newest token began at most n tokens ago, since every token of text has
    at least one byte; so only that many tokens (and a few more, for what the cut breaks) are decoded for each new one,
    whatever the completion's length. Where they hold a stop string, the whole text decides.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        assert all(stop), "an empty stop string is in every text"
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._window_len = max((len(text.encode()) for text in stop), default=0) + 8
        self._ids: list[int] = []
        self._cut: int | None = None  # characters before the earliest stop string

    def feed(self, token_id: int) -> bool:
        """Take the next token; True as soon as the text holds a stop string."""
        assert self._cut is None, "the completion has ended"
        if not self._detokenizer.is_text(token_id):
            return False
        self._ids.append(token_id)
        if self._find(self._ids[-self._window_len :]) is not None:
            self._cut = self._find(self._ids)
        return self._cut is not None

    @property
    def text(self) -> str:
        """The text so far, up to the earliest stop string."""
        return self._detokenizer.decode(self._ids)[: self._cut]

    def _find(self, token_ids: Sequence[int]) -> int | None:
        text = self._detokenizer.decode(token_ids).rstrip("\ufffd")
        return min((at for at in map(text.find, self._stop) if at >= 0), default=None)
