"""Converts token ids to the text that follows a prompt, and finds stop strings in it while it grows.

Knows no row and no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from batchgen.prompts.control_tokens import special_tokens
from batchgen.prompts.token_bytes import TokenBytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from batchgen.plan.token_store import TokenIds

# What the decoders of `tokenizers` do with a token depends on the one before it at most, or on its being the first.
_NUM_BEFORE = 8


class Preceding(NamedTuple):
    """What precedes a text, as far as it changes how the text's tokens are decoded."""

    token_ids: Sequence[int] = ()  # empty: the text is at the beginning
    text: str = ""  # the text of these tokens without an incomplete character, which belongs to what completes it
    incomplete: bytes = b""
    num_replaced: int = 0  # characters U+FFFD that stand for the incomplete one as long as it is not completed


BEGINNING = Preceding()


class Detokenizer:
    """Converts token ids to text. Ids that the tokenizer lacks, and special tokens that are skipped, give no text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        skipped = special_tokens(tokenizer).keys() if skip_special_tokens else ()
        self._text_ids = frozenset(tokenizer.get_vocab().values()).difference(skipped)
        self._bytes = TokenBytes(tokenizer)

    def is_text(self, token_id: int) -> bool:
        """Return whether the token adds to the text."""
        return token_id in self._text_ids

    def decode(self, token_ids: Iterable[int], after: Preceding = BEGINNING) -> str:
        """Return the text that `token_ids` add to what precedes; bytes that are not UTF-8 (yet) become U+FFFD.

        So `decode(prompt + completion) == decode(prompt) + decode(completion, preceding(prompt))`. It cannot be so if
        the completion begins with bytes that make the prompt's last byte tokens invalid: these are not decoded again.
        """
        text = self._decode([*after.token_ids, *token_ids])
        if text.startswith(after.text):
            return text[len(after.text) :].removeprefix("\ufffd" * after.num_replaced)
        return self._decode([*self.inside.token_ids, *token_ids])[len(self.inside.text) :]

    def preceding(self, prompt: Sequence[int] | TokenIds) -> Preceding:
        """Return what a text after `prompt` needs of it: a few tokens, whatever its length."""
        token_ids = self._end_of(prompt)
        incomplete, num_replaced = self._bytes.incomplete_end(token_ids)
        text = self._decode(token_ids)
        return Preceding(token_ids, text[: len(text) - num_replaced], incomplete, num_replaced)

    @cached_property
    def inside(self) -> Preceding:
        """Return what precedes a text inside another one; nothing if the tokenizer has only byte tokens."""
        usual = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
        words = (n for n in chain(usual, self._text_ids) if self.is_text(n) and not self._bytes.is_byte_token(n))
        return next((self.preceding([n]) for n in words if self._decode([n]).strip()), BEGINNING)

    def last(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return the last tokens, at least `num_tokens` of them, from the first byte token of a character on."""
        start = max(len(token_ids) - num_tokens, 0)
        while start and self._bytes.is_continuation(token_ids[start]):
            start -= 1
        return token_ids[start:]

    def _end_of(self, prompt: Sequence[int] | TokenIds) -> Sequence[int]:
        """Return the last tokens of text. Byte tokens that are not UTF-8 come with all byte tokens before them."""
        ids: list[int] = []
        for token_id in self._text_from_end(prompt):
            if len(ids) >= _NUM_BEFORE and not self._bytes.is_byte_token(ids[-1]):
                break
            ids.append(token_id)
        ids.reverse()
        return self.last(ids, _NUM_BEFORE) if self._bytes.is_valid_end(ids) else ids

    def _text_from_end(self, prompt: Sequence[int] | TokenIds) -> Iterator[int]:
        return filter(self.is_text, map(int, reversed(prompt)))

    def _decode(self, token_ids: Iterable[int]) -> str:
        text = self._tokenizer.decode(list(filter(self.is_text, token_ids)), clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class TokenTexts:
    """The texts of single tokens as they appear inside a text: a word begins with its space."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        self._inside: dict[int, str] = {}
        self._first: dict[int, str] = {}

    def __getitem__(self, token_id: int) -> str:
        """Return a token's text: U+FFFD for bytes that are no whole character, "" for an id the tokenizer lacks."""
        if token_id not in self._inside:
            self._inside[token_id] = self._detokenizer.decode([token_id], self._detokenizer.inside)
        return self._inside[token_id]

    def first(self, token_id: int) -> str:
        """Return a token's text at the beginning of a text, where a tokenizer may drop a space."""
        if token_id not in self._first:
            self._first[token_id] = self._detokenizer.decode([token_id])
        return self._first[token_id]


class StopTexts:
    """What the texts of `stop` are with one tokenizer: some are a special token, some contain one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._text_to_id = {token.content: token_id for token_id, token in special_tokens(tokenizer).items()}

    def token_id(self, text: str) -> int | None:
        """Return the id of the special token that is exactly this text; None if there is none."""
        return self._text_to_id.get(text)

    def token_ids(self, stop: Iterable[str]) -> frozenset[int]:
        """Return the special tokens among the texts: each ends a completion as a stop token does."""
        return frozenset(self._text_to_id[text] for text in stop if text in self._text_to_id)

    def has_special(self, text: str) -> bool:
        """Return whether the text contains a special token, so that it is found only where those are not skipped."""
        return any(special in text for special in self._text_to_id)


class TextSearch:
    """Finds stop strings in one growing text; one complete before `min_tokens` tokens does not count.

    A character whose bytes are still incomplete is searched together with the token that completes it.

    A stop string of n bytes that ends in the newest token began at most n tokens ago, since every token of text has
    at least one byte. So each new token decodes only that many tokens (and a few more, as the first may be part of a
    character), whatever the text's length. If they contain a stop string, the whole text is searched.
    """

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int = 0, after: Preceding = BEGINNING
    ) -> None:
        assert all(stop), "every text contains the empty stop string"
        self.detokenizer = detokenizer
        self.ids: list[int] = []  # of the tokens that are text
        self.found: int | None = None  # characters before the earliest stop string
        self._stop = tuple(stop)
        self._after = after
        self._window_len = max((len(text.encode()) for text in stop), default=0) + 8
        self._num_early_tokens = max(min_tokens - 1, 0)  # coming tokens in which no stop string counts
        self._num_early_chars = 0  # of the text: a stop string that ends within them does not count

    def feed(self, token_id: int) -> None:
        """Take the next token."""
        is_text = self.detokenizer.is_text(token_id)
        if is_text:
            self.ids.append(token_id)
        if self._num_early_tokens:
            self._num_early_tokens -= 1
            if not self._num_early_tokens:
                self._num_early_chars = len(self.complete_text(self.ids))
        elif is_text and self._stop and self._find_stop(self._recent_text()) is not None:
            self.found = self._find_stop(self.complete_text(self.ids), self._num_early_chars)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of the first tokens of the completion."""
        return self.detokenizer.decode(token_ids, self._after)

    def complete_text(self, token_ids: Sequence[int]) -> str:
        """Return `text_of` without an incomplete character at its end."""
        return self.text_of(token_ids).rstrip("\ufffd")

    def _recent_text(self) -> str:
        if len(self.ids) <= self._window_len:
            return self.complete_text(self.ids)
        recent = self.detokenizer.last(self.ids, self._window_len)
        return self.detokenizer.decode(recent).rstrip("\ufffd")

    def _find_stop(self, text: str, num_early_chars: int = 0) -> int | None:
        """Return where the first stop string begins of those that end after the first `num_early_chars` characters."""
        starts = (text.find(stop, max(num_early_chars - len(stop) + 1, 0)) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=None)


class StopStringMatcher:
    """Finds the stop strings of one growing completion in its text as it will be written.

    `special`: another search of the same completion, in its text with the special tokens that are not written.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str],
        min_tokens: int = 0,
        after: Preceding = BEGINNING,
        special: TextSearch | None = None,
    ) -> None:
        self._written = TextSearch(detokenizer, stop, min_tokens, after)
        self._special = special
        self._searches = [self._written] if special is None else [self._written, special]

    def feed(self, token_id: int) -> bool:
        """Take the next token. Returns True once the text contains a stop string."""
        assert not self._is_found, "the completion has ended"
        for search in self._searches:
            search.feed(token_id)
        return self._is_found

    def end(self, token_id: int) -> None:
        """Take the token that ended the completion, which is no text unless it completes a stop string."""
        num_tokens = len(self._written.ids)
        if not self.feed(token_id):
            del self._written.ids[num_tokens:]

    @property
    def text(self) -> str:
        """The text so far, up to the earliest stop string."""
        text = self._written.text_of(self._written.ids)[: self._written.found]
        if self._special is None or self._special.found is None:
            return text
        return min(text, self._text_before(self._special, self._special.found), key=len)

    @property
    def _is_found(self) -> bool:
        return any(search.found is not None for search in self._searches)

    def _text_before(self, special: TextSearch, start: int) -> str:
        """Return what is written of the first `start` characters of the text with special tokens."""
        ids, num_written = special.ids, len(special.ids) - 1
        while len(special.complete_text(ids[:num_written])) > start:
            num_written -= 1
        if not self._written.detokenizer.is_text(ids[num_written]):  # the stop string begins in a special token
            return self._written.text_of(ids[:num_written])
        num_after = len(special.complete_text(ids[: num_written + 1])) - start
        text = self._written.complete_text(ids[: num_written + 1])
        return text[: max(len(text) - num_after, 0)]
