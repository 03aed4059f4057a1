"""Keeps the control tokens of a tokenizer apart from the same strings in a user's text.

A control string in a rendered chat is a control token unless the row's own texts have all of its punctuation, so that
it may be theirs. In that case the chat is rendered again, with marks (see `marks.py`) for a character of every control
string in the row's texts. The control strings that are left have a character of the template's and are control tokens,
also those that the template builds, for example from the name of a role. A template is trusted not to decode text, such
as HTML entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batchgen.prompts.marks import Marks, choose_marks

if TYPE_CHECKING:
    from transformers import AddedToken, PreTrainedTokenizerBase

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
        self._string_to_signs = {string: _signs(string) for string in self._added}
        self._marked_chars = sorted({(_signs(string) or string)[0] for string in self._added})
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

    def strings(self, text: str) -> list[str]:
        """Return the different control strings of a text, in the order in which they occur first."""
        return list(dict.fromkeys(self._pattern.findall(text)))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the control strings of a text begin and end."""
        return [match.span() for match in self._pattern.finditer(text)]

    def possible(self, rendered: str, texts: Sequence[str]) -> list[str]:
        """Return the control strings of a rendered chat that can consist of characters of `texts` alone.

        Letters and digits are not looked for: a template may change their case.
        """
        found = self.strings(rendered)
        signs = {sign for string in found for sign in self._string_to_signs[string]}
        absent = {sign for sign in signs if not any(sign in text for text in texts)}
        return [string for string in found if absent.isdisjoint(self._string_to_signs[string])]

    def marks(self, texts: Sequence[str]) -> Marks:
        """Return marks for a character of every control string, so that a marked text has none; none is in `texts`.

        Raises RowError if too few private-use characters are unused.
        """
        return choose_marks(self._marked_chars, texts)


def _signs(string: str) -> str:
    """Return the characters of a control string that are neither letters nor digits."""
    return "".join(char for char in string if not char.isalnum())
