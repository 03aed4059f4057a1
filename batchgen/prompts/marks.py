"""Marks: private-use characters that stand for characters of a row's own text while a chat template renders it.

A template sees a marked text as a `MarkedText`, whose methods answer as those of the real text do. Its characters are
the marks, so that whatever a template makes of it, by any method or filter, has marks and never the characters they
stand for. Knows no template and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar

from batchgen.errors import RowError

T = TypeVar("T")

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


class Marks:
    """The marks of one rendering: a private-use character for each character that is replaced. May be empty."""

    def __init__(self, char_to_mark: Mapping[str, str]) -> None:
        self._char_to_mark = char_to_mark
        self._table = str.maketrans(dict(char_to_mark))

    def __bool__(self) -> bool:
        return bool(self._char_to_mark)

    def mark(self, value: T) -> T:
        """Return a JSON-like value with the marks in all of its texts, keys included."""
        marked: T = _map_texts(value, lambda text: text.translate(self._table))
        return marked

    def restore(self, text: str) -> str:
        """Return a text with the characters in place of their marks; it has as many characters."""
        for char, mark in self._char_to_mark.items():
            text = str.replace(text, mark, char)
        return text

    def track(self, value: Any) -> Any:
        """Return a JSON-like value in which every text that has a mark is a MarkedText."""
        return _map_texts(value, self._tracked)

    def _tracked(self, text: str) -> str:
        real = self.restore(text)
        return text if real == str.__str__(text) else MarkedText(text, real, self)


NO_MARKS = Marks({})


def choose_marks(chars: Iterable[str], texts: Iterable[str]) -> Marks:
    """Return marks for some characters; none of the marks occurs in `texts`.

    Raises RowError if too few private-use characters are unused.
    """
    texts = list(texts)
    unused = (mark for mark in map(chr, _PRIVATE_USE) if not any(mark in text for text in texts))
    chars = list(chars)
    char_to_mark = dict(zip(chars, unused, strict=False))
    if len(char_to_mark) < len(chars):
        raise RowError("the text has control strings, and no private-use character is unused to mark them")
    return Marks(char_to_mark)


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of(list(value))
        yield from texts_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


class MarkedText(str):
    """A text with marks. Comparisons, searches and splits are those of the real text; the parts are marked texts."""

    _real: str
    _marks: Marks

    def __new__(cls, marked: str, real: str, marks: Marks) -> MarkedText:
        text = super().__new__(cls, marked)
        text._real, text._marks = real, marks
        return text

    def __hash__(self) -> int:
        return hash(self._real)

    def __str__(self) -> str:
        return self

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> str:
        return self._track(super().__getitem__(index))

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __radd__(self, other: str) -> str:
        return self._track(str.__add__(other, self))

    def __rmod__(self, other: str) -> str:
        return self._track(str.__mod__(other, self))

    def strip(self, chars: str | None = None, /) -> str:
        chars = self._restored(chars)
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(self._real.lstrip(self._restored(chars))) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(self._real.rstrip(self._restored(chars)))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(self) - len(self._real.removeprefix(self._restored(prefix))) :]

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self._real.removesuffix(self._restored(suffix)))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._real.split(self._restored(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._real.rsplit(self._restored(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._parts(self._real.splitlines(True), "")
        return [line[: len(real)] for line, real in zip(lines, self._real.splitlines(keepends), strict=True)]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, behind = self._parts(self._real.partition(self._restored(sep)), "")
        return before, found, behind

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, behind = self._parts(self._real.rpartition(self._restored(sep)), "")
        return before, found, behind

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return self._track(super().replace(old, new, count))
        return self._track(str.join(new, self.split(old, count)))

    def _parts(self, real_parts: Iterable[str], sep: str | None) -> list[str]:
        """Return the parts of this text that stand where those of the real text do; None: whitespace between them."""
        parts, start = [], 0
        for real in real_parts:
            start = self._real.index(real, start) if sep is None else start
            parts.append(self[start : start + len(real)])
            start += len(real) + len(sep or "")
        return parts

    def _track(self, text: str) -> str:
        return self._marks._tracked(text)

    def _restored(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._restored, value))
        return self._marks.restore(value) if isinstance(value, str) else value


def _on_real(name: str) -> Callable[..., Any]:
    """Return a method that asks the real text."""
    method = getattr(str, name)
    return lambda text, *args: method(text._real, *map(text._restored, args))


def _on_marks(name: str) -> Callable[..., str]:
    """Return a method that changes no mark, so that the result of the marked text is right."""
    method = getattr(str, name)
    return lambda text, *args: text._track(method(text, *args))


# None of these returns a part of the real text.
for _name in (
    *("__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "count", "endswith", "find", "index"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable"),
    *("isspace", "istitle", "isupper", "rfind", "rindex", "startswith"),
):
    setattr(MarkedText, _name, _on_real(_name))
for _name in (
    *("__add__", "__mod__", "__mul__", "__rmul__", "capitalize", "casefold", "center", "expandtabs", "join", "ljust"),
    *("lower", "rjust", "swapcase", "title", "upper", "zfill"),
):
    setattr(MarkedText, _name, _on_marks(_name))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    if isinstance(value, tuple):
        items = [_map_texts(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # a NamedTuple, or a plain one
    return value
