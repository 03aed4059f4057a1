"""Encodes text with one tokenizer: raw text, and rendered chats in which a row's own text is never a control token.

A rendered chat is encoded segment by segment between its control tokens, and each distinct segment once, since shared
system messages are the bulk of most jobs. When the encoder is built, it checks on a probe with every control token
that this gives the ids of the whole text. It does not for a tokenizer that treats the beginning of a text differently
(SentencePiece): then the whole text is encoded, and only rows that contain control strings are split into segments.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchgen.errors import RowError
from batchgen.prompts.control_tokens import ControlTokens
from batchgen.prompts.marks import NO_MARKS, Marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CACHE_CHARS = 4_000_000  # of segments and as many ids: at most about 16 + 16 MB
_SENTINELS = ("\n", "a", ".")
_PROBE_PIECES = ("user\nHi there", " a", "", "\n", "\n\nB.  c \n", "é1", "  ", "0")


class TextEncoder:
    """Encodes the texts of one job. Begins every prompt with the tokenizer's own BOS; never adds an end token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, cache_chars: int = CACHE_CHARS) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.control_tokens = ControlTokens(tokenizer)
        self._bos_ids = _bos_ids(tokenizer)
        self._cache = _SegmentCache(cache_chars)
        self._can_split = self._segments_equal_whole(self._encode_literal)
        self._can_split_by_sentinel = not self._can_split and self._segments_equal_whole(self._encode_continuation)

    def encode_raw(self, text: str) -> list[int]:
        """Return the ids of a text in which control strings are control tokens."""
        return self._with_bos(self._encode_whole(_checked(text)))

    def encode_chat(self, text: str, marks: Marks = NO_MARKS) -> list[int]:
        """Return the ids of a rendered chat, in which the characters that `marks` stand for are ordinary text.

        Raises RowError if this tokenizer cannot encode them as ordinary text.
        """
        _checked(text)
        if self._can_split:
            ids = self._encode_segments(text, marks, self._encode_cached)
        elif not (literals := self._literals(text, marks)):
            ids = self._encode_whole(marks.restore(text))
        elif self._can_split_by_sentinel:
            ids = self._encode_segments(text, marks, self._encode_continuation)
        else:
            raise RowError(f"the text has {_quoted(literals)}, which this tokenizer cannot encode as ordinary text")
        return self._with_bos(ids)

    def _encode_segments(self, text: str, marks: Marks, encode_segment: Callable[[str], Sequence[int]]) -> list[int]:
        ids: list[int] = []
        for segment_index, (segment, control_id) in enumerate(self.control_tokens.split(text)):
            ordinary = marks.restore(segment)
            # The first segment is the beginning of the text and is encoded as such.
            segment_ids = self._encode_cached(ordinary) if segment_index == 0 else encode_segment(ordinary)
            if marks:
                self._refuse_control(ordinary, segment_ids)
            ids += segment_ids
            if control_id is not None:
                ids.append(control_id)
        return ids

    def _literals(self, text: str, marks: Marks) -> list[str]:
        """Return the control strings that are ordinary text in a marked chat."""
        control, restored = self.control_tokens, marks.restore(text)
        if not marks or control.spans(text) == control.spans(restored):
            return []
        return [string for segment, _ in control.split(text) for string in control.strings(marks.restore(segment))]

    def _refuse_control(self, ordinary: str, ids: Sequence[int]) -> None:
        strings = self.control_tokens.strings(ordinary)
        if not {self.control_tokens.text_to_id[string] for string in strings}.isdisjoint(ids):
            raise RowError(f"this tokenizer makes a control token of the ordinary text {_quoted(strings)}")

    def _encode_whole(self, text: str) -> list[int]:
        return self._encode(text, split_special_tokens=False)

    def _encode_literal(self, text: str) -> list[int]:
        return self._encode(text, split_special_tokens=True)

    def _encode(self, text: str, *, split_special_tokens: bool) -> list[int]:
        # `tokenizer.encode` does the same, but its wrapper and the offsets take half as long again.
        self._backend.encode_special_tokens = split_special_tokens
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _encode_cached(self, text: str) -> Sequence[int]:
        ids = self._cache.get(text)
        return self._cache.put(text, self._encode_literal(text)) if ids is None else ids

    def _encode_continuation(self, text: str) -> list[int]:
        ids = encode_continuation(self._encode_literal, text)
        if ids is None:
            raise RowError("the text contains control strings, and this tokenizer cannot encode it in segments")
        return ids

    def _segments_equal_whole(self, encode_segment: Callable[[str], Sequence[int]]) -> bool:
        """Return whether the segments of a text with every control token give the ids of the whole text."""
        added = self._tokenizer.added_tokens_decoder.values()
        pieces = [*_PROBE_PIECES, *[token.content for token in added if not token.special][:8]]
        text = "".join(piece + control for control in self.control_tokens.text_to_id for piece in pieces)
        try:
            return self._encode_segments(text, NO_MARKS, encode_segment) == self._encode_whole(text)
        except RowError:
            return False

    def _with_bos(self, ids: list[int]) -> list[int]:
        """Return the ids with BOS once, even if they begin with several."""
        bos = self._bos_ids
        while bos and ids[: len(bos)] == bos:
            ids = ids[len(bos) :]
        return bos + ids


def encode_continuation(encode: Callable[[str], list[int]], text: str) -> list[int] | None:
    """Return the ids of `text` as they are after other text, or None if they cannot be determined.

    The text is encoded after a sentinel character, whose ids are then removed. If those ids are unchanged, no token
    spans the border, so the other ids are those of `text` alone.
    """
    for sentinel in _SENTINELS:
        head, ids = encode(sentinel), encode(sentinel + text)
        if ids[: len(head)] == head:
            return ids[len(head) :]
    return None


class _SegmentCache:
    """An LRU cache of the ids of segments, with at most `max_chars` characters of text."""

    def __init__(self, max_chars: int) -> None:
        self._text_to_ids: OrderedDict[str, array[int]] = OrderedDict()
        self._num_free_chars = max_chars

    def get(self, text: str) -> Sequence[int] | None:
        ids = self._text_to_ids.get(text)
        if ids is not None:
            self._text_to_ids.move_to_end(text)
        return ids

    def put(self, text: str, ids: list[int]) -> Sequence[int]:
        self._text_to_ids[text] = array("i", ids)
        self._num_free_chars -= len(text)
        while self._num_free_chars < 0:
            oldest, _ = self._text_to_ids.popitem(last=False)
            self._num_free_chars += len(oldest)
        return ids


def _bos_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids that the tokenizer itself puts before a text: BOS, or nothing (a few put two)."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a", add_special_tokens=True)
    starts = range(len(full) - len(bare) + 1)
    return next((full[:start] for start in starts if full[start : start + len(bare)] == bare), [])


def _checked(text: str) -> str:
    """Return `text`. Raises RowError if it cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"half of a surrogate pair at character {error.start}") from None
    return text


def _quoted(strings: Sequence[str]) -> str:
    return ", ".join(map(repr, strings))
