"""Converts token ids to text, and finds stop strings in text that is still growing. Knows no row and no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchgen.prompts.control_tokens import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Converts token ids to text. Ids that the tokenizer lacks, and special tokens that are skipped, give no text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        skipped = special_tokens(tokenizer).keys() if skip_special_tokens else ()
        self._text_ids = frozenset(tokenizer.get_vocab().values()).difference(skipped)

    def is_text(self, token_id: int) -> bool:
        """Return whether the token adds to the text."""
        return token_id in self._text_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`; bytes that are not UTF-8 (yet) become U+FFFD."""
        ids = [token_id for token_id in token_ids if token_id in self._text_ids]
        text = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class TokenTexts:
    """The texts of single tokens as they appear inside a text: a word begins with its space."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        # A tokenizer may drop the space before the first word, so tokens are decoded after this one.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._num_chars_before = len(self._detokenizer.decode(self._before))
        self._texts: dict[int, str] = {}

    def __getitem__(self, token_id: int) -> str:
        """Return a token's text: U+FFFD for bytes that are no whole character, "" for an id the tokenizer lacks."""
        if token_id not in self._texts:
            self._texts[token_id] = self._detokenizer.decode([*self._before, token_id])[self._num_chars_before :]
        return self._texts[token_id]


class StopStringMatcher:
    """Finds the stop strings of one growing completion; one complete before `min_tokens` tokens does not count.

    The completion's text is searched, so special tokens that are skipped are not. A character whose bytes are still
    incomplete is searched together with the token that completes it.

    A stop string of n bytes that ends in the newest token began at most n tokens ago, since every token of text has
    at least one byte. So each new token decodes only that many tokens (and a few more, as the first may be part of a
    character), whatever the completion's length. If they contain a stop string, the whole text is searched.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int = 0) -> None:
        assert all(stop), "every text contains the empty stop string"
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._window_len = max((len(text.encode()) for text in stop), default=0) + 8
        self._num_early_tokens = max(min_tokens - 1, 0)  # coming tokens in which no stop string counts
        self._num_early_chars = 0  # of the text: a stop string that ends within them does not count
        self._ids: list[int] = []
        self._text_len: int | None = None  # characters before the earliest stop string

    def feed(self, token_id: int) -> bool:
        """Take the next token. Returns True once the text contains a stop string."""
        assert self._text_len is None, "the completion has ended"
        is_text = self._detokenizer.is_text(token_id)
        if is_text:
            self._ids.append(token_id)
        if self._num_early_tokens:
            self._num_early_tokens -= 1
            if not self._num_early_tokens:
                self._num_early_chars = len(self._complete_text(self._ids))
        elif is_text and self._find_stop(self._complete_text(self._ids[-self._window_len :])) is not None:
            self._text_len = self._find_stop(self._complete_text(self._ids), self._num_early_chars)
        return self._text_len is not None

    @property
    def text(self) -> str:
        """The text so far, up to the earliest stop string."""
        return self._detokenizer.decode(self._ids)[: self._text_len]

    def _complete_text(self, token_ids: Sequence[int]) -> str:
        return self._detokenizer.decode(token_ids).rstrip("\ufffd")

    def _find_stop(self, text: str, num_early_chars: int = 0) -> int | None:
        """Return where the first stop string begins of those that end after the first `num_early_chars` characters."""
        starts = (text.find(stop, max(num_early_chars - len(stop) + 1, 0)) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=None)
