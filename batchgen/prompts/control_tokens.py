"""Keeps the control tokens of a tokenizer apart from the same strings in a user's text.

A control string in a row's text is replaced by a private-use character before the chat template runs, and restored
after the rendered text is split at the template's own control tokens, so that it never becomes a control token. A
control string that the template builds, for example from the name of a role, counts as the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from batchgen.errors import RowError

if TYPE_CHECKING:
    from transformers import AddedToken, PreTrainedTokenizerBase

T = TypeVar("T")

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
# What the tokenizers library strips beside a token. Python's str.strip also strips the separators 1C to 1F.
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Segment(NamedTuple):
    """Ordinary text of a rendered chat and the control token that follows it."""

    text: str
    control_id: int | None  # None: the end of the rendered chat follows


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, AddedToken]:
    """Return the tokens that are not text, by id: those marked special, or with a role such as end of text."""
    with_a_role = set(tokenizer.all_special_tokens)
    added = tokenizer.added_tokens_decoder.items()
    return {n: token for n, token in added if token.content and (token.special or token.content in with_a_role)}


class ControlTokens:
    """The control tokens of one tokenizer, as strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        special = special_tokens(tokenizer)
        self._added = {token.content: token for token in special.values()}
        self.text_to_id = {token.content: token_id for token_id, token in special.items()}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def split(self, text: str) -> Iterator[Segment]:
        """Split `text` at its control tokens as the tokenizer does. Yields the last segment without a token."""
        start, strip_left = 0, False
        for match in self._pattern.finditer(text):
            token = self._added[match.group()]
            segment = text[start : match.start()]
            segment = segment.lstrip(_WHITESPACE) if strip_left else segment
            yield Segment(segment.rstrip(_WHITESPACE) if token.lstrip else segment, self.text_to_id[token.content])
            start, strip_left = match.end(), token.rstrip
        yield Segment(text[start:].lstrip(_WHITESPACE) if strip_left else text[start:], None)

    def escape(self, value: T, *, also_used: str = "") -> tuple[T, dict[int, str]]:
        """Replace the control strings in all texts of a JSON-like value (not in keys) by private-use characters.

        Returns the new value and the table for `str.translate` that restores the strings; without control strings,
        the same value and an empty table. No character of the table occurs in `value` or in `also_used`.
        Raises RowError if too few private-use characters are unused.
        """
        texts = list(_texts(value))
        found = dict.fromkeys(string for text in texts for string in self._pattern.findall(text))
        if not found:
            return value, {}
        used = set(also_used).union(*texts)
        escapes = dict(zip(found, (chr(n) for n in _PRIVATE_USE if chr(n) not in used), strict=False))
        if len(escapes) < len(found):
            raise RowError("the text contains control strings, and no private-use character is unused to replace them")
        escaped = _map_texts(value, lambda text: self._pattern.sub(lambda match: escapes[match.group()], text))
        return escaped, {ord(character): string for string, character in escapes.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return value
