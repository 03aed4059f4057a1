"""Text to token ids, for one tokenizer: raw text, and rendered chats in which a row's own text is only data.

A rendered chat is encoded segment by segment between its control tokens, each distinct segment once: shared system
messages are the bulk of most jobs. That this gives the ids of the whole text is checked when the encoder is made, on
a probe with every control token; a tokenizer for which it does not hold (SentencePiece that treats the beginning of
the text in its own way) encodes the whole text, and only rows that hold control strings go through segments.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from batchgen.errors import RowError
from batchgen.prompts.control_tokens import ControlTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CACHE_CHARS = 4_000_000  # of text that is kept with its ids: at most about 16 + 16 MB
_SENTINELS = ("\n", "a", ".")
_PROBE_PIECES = ("user\nHi there", " a", "", "\n", "\n\nB.  c \n", "é1", "  ", "0")


class TextEncoder:
    """Encodes the texts of one job. Never adds an end token; begins every result with the tokenizer's own BOS."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, cache_chars: int = CACHE_CHARS) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.control_tokens = ControlTokens(tokenizer)
        self._first_ids = _first_ids(tokenizer)
        self._cache = _SegmentCache(cache_chars)
        self._segments_equal_whole = self._equals_whole(self._literal)
        self._sentinel_equals_whole = not self._segments_equal_whole and self._equals_whole(self._behind_sentinel)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are meant."""
        return self._with_first_ids(self._whole(_checked(text)))

    def encode_chat(self, text: str, literals: Mapping[int, str]) -> list[int]:
        """Ids of a rendered chat; `literals` (from `ControlTokens.hide`) are put back as ordinary text."""
        _checked(text)
        if self._segments_equal_whole:
            ids = self._by_segments(text, literals, self._cached)
        elif not literals:
            ids = self._whole(text)
        elif self._sentinel_equals_whole:
            ids = self._by_segments(text, literals, self._behind_sentinel)
        else:
            raise RowError(f"the text holds {_list(literals)}, which this tokenizer cannot encode as ordinary text")
        return self._with_first_ids(ids)

    def _by_segments(
        self, text: str, literals: Mapping[int, str], encode_segment: Callable[[str], Sequence[int]]
    ) -> list[int]:
        forbidden = {self.control_tokens.text_to_id[string] for string in literals.values()}
        ids: list[int] = []
        for position, (segment, control_id) in enumerate(self.control_tokens.split(text)):
            literal = segment.translate(literals) if literals else segment
            # Nothing stands before the first segment, so that it is encoded as the beginning that it is.
            segment_ids = self._cached(literal) if position == 0 else encode_segment(literal)
            if forbidden and not forbidden.isdisjoint(segment_ids):
                raise RowError(f"this tokenizer makes a control token of the ordinary text {_list(literals)}")
            ids += segment_ids
            if control_id is not None:
                ids.append(control_id)
        return ids

    def _whole(self, text: str) -> list[int]:
        return self._encode(text, split_special_tokens=False)

    def _literal(self, text: str) -> list[int]:
        return self._encode(text, split_special_tokens=True)

    def _encode(self, text: str, *, split_special_tokens: bool) -> list[int]:
        # What the tokenizer's own `encode` does, which takes half as long again around it and for offsets.
        self._backend.encode_special_tokens = split_special_tokens
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _cached(self, text: str) -> Sequence[int]:
        ids = self._cache.get(text)
        return self._cache.put(text, self._literal(text)) if ids is None else ids

    def _behind_sentinel(self, text: str) -> list[int]:
        """Ids of a text that is not the beginning: encoded behind a character whose ids are then taken off again.

        Where those ids come out unchanged, no token spans the border, so that the rest are the ids of `text` alone.
        """
        for sentinel in _SENTINELS:
            head, ids = self._literal(sentinel), self._literal(sentinel + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        raise RowError("the text holds control strings and cannot be encoded apart from them by this tokenizer")

    def _equals_whole(self, encode_segment: Callable[[str], Sequence[int]]) -> bool:
        """Whether encoding by segments gives the ids of the whole, on a text with every control token."""
        added = self._tokenizer.added_tokens_decoder.values()
        pieces = [*_PROBE_PIECES, *[token.content for token in added if not token.special][:8]]
        text = "".join(piece + control for control in self.control_tokens.text_to_id for piece in pieces)
        try:
            return self._by_segments(text, {}, encode_segment) == self._whole(text)
        except RowError:
            return False

    def _with_first_ids(self, ids: list[int]) -> list[int]:
        first = self._first_ids
        while first and ids[: len(first)] == first:
            ids = ids[len(first) :]
        return first + ids


class _SegmentCache:
    """Ids of the segments used last, at most `max_chars` of text."""

    def __init__(self, max_chars: int) -> None:
        self._text_to_ids: OrderedDict[str, array[int]] = OrderedDict()
        self._room = max_chars

    def get(self, text: str) -> Sequence[int] | None:
        ids = self._text_to_ids.get(text)
        if ids is not None:
            self._text_to_ids.move_to_end(text)
        return ids

    def put(self, text: str, ids: list[int]) -> Sequence[int]:
        self._text_to_ids[text] = array("i", ids)
        self._room -= len(text)
        while self._room < 0:
            oldest, _ = self._text_to_ids.popitem(last=False)
            self._room += len(oldest)
        return ids


def _first_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that the tokenizer puts before a text of its own accord: BOS, or nothing (a few have two)."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a", add_special_tokens=True)
    starts = range(len(full) - len(bare) + 1)
    return next((full[:start] for start in starts if full[start : start + len(bare)] == bare), [])


def _checked(text: str) -> str:
    """`text`, which must be sayable in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"half of a surrogate pair at character {error.start}") from None
    return text


def _list(literals: Mapping[int, str]) -> str:
    return ", ".join(map(repr, literals.values()))
