"""Token ids back to text, and stop strings found in text that is still growing. Knows no row and no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchgen.prompts.control_tokens import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Turns token ids into text. Ids that the tokenizer lacks are no text, nor are special tokens that are skipped."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        skipped = special_tokens(tokenizer).keys() if skip_special_tokens else ()
        self._text_ids = frozenset(tokenizer.get_vocab().values()).difference(skipped)

    def is_text(self, token_id: int) -> bool:
        """Whether the token adds to the text."""
        return token_id in self._text_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 (yet) become U+FFFD."""
        ids = [token_id for token_id in token_ids if token_id in self._text_ids]
        text = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class TokenTexts:
    """The text of single tokens as they stand inside a text: a word begins with its space."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        # A tokenizer may drop the space before the first word; behind this token none is the first.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._num_before = len(self._detokenizer.decode(self._before))
        self._texts: dict[int, str] = {}

    def __getitem__(self, token_id: int) -> str:
        """Bytes that are no whole character are U+FFFD; an id that the tokenizer lacks is no text."""
        if token_id not in self._texts:
            self._texts[token_id] = self._detokenizer.decode([*self._before, token_id])[self._num_before :]
        return self._texts[token_id]


class StopMatcher:
    """Watches one completion for its stop strings; those that are complete before `min_tokens` tokens do not count.

    What is searched is the completion's text, so without special tokens where these are skipped. A character whose
    bytes are still incomplete waits for the token that completes it.

    A stop string of n bytes that ends in the newest token began at most n tokens ago, since every token of text has
    at least one byte; so only that many tokens (and a few more, for what the cut breaks) are decoded for each new one,
    whatever the completion's length. Where they hold a stop string, the whole text decides.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int = 0) -> None:
        assert all(stop), "an empty stop string is in every text"
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._window_len = max((len(text.encode()) for text in stop), default=0) + 8
        self._num_early = max(min_tokens - 1, 0)  # tokens to come with which nothing may end
        self._num_ignored = 0  # characters at the beginning in which a stop string does not count
        self._ids: list[int] = []
        self._cut: int | None = None  # characters before the earliest stop string

    def feed(self, token_id: int) -> bool:
        """Take the next token; True as soon as the text holds a stop string."""
        assert self._cut is None, "the completion has ended"
        is_text = self._detokenizer.is_text(token_id)
        if is_text:
            self._ids.append(token_id)
        if self._num_early:
            self._num_early -= 1
            if not self._num_early:
                self._num_ignored = len(self._searched(self._ids))
        elif is_text and self._find(self._searched(self._ids[-self._window_len :])) is not None:
            self._cut = self._find(self._searched(self._ids), self._num_ignored)
        return self._cut is not None

    @property
    def text(self) -> str:
        """The text so far, up to the earliest stop string."""
        return self._detokenizer.decode(self._ids)[: self._cut]

    def _searched(self, token_ids: Sequence[int]) -> str:
        return self._detokenizer.decode(token_ids).rstrip("\ufffd")

    def _find(self, text: str, num_ignored: int = 0) -> int | None:
        """Where the first stop string begins of those that end behind the first `num_ignored` characters."""
        starts = (text.find(stop, max(num_ignored - len(stop) + 1, 0)) for stop in self._stop)
        return min((at for at in starts if at >= 0), default=None)
