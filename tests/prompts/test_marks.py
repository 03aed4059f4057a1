"""Marked texts: they answer as the real text does, and what is made of them never has a character that is marked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchgen.errors import RowError
from batchgen.prompts.marks import MarkedText, Marks, choose_marks, texts_of
from tests.examples import examples

MARK = chr(0xF0000)
MARKS = Marks({"<": MARK})

texts = st.text(alphabet="<t/> \n", max_size=12)

# What templates do with a text; `other` is a text of the template's own.
OPERATIONS: dict[str, Callable[[Any, str], Any]] = {
    "split": lambda text, other: text.split(other or None),
    "split once": lambda text, other: text.split(other or None, 1),
    "rsplit once": lambda text, other: text.rsplit(other or None, 1),
    "splitlines": lambda text, other: [text.splitlines(), text.splitlines(True)],
    "partition": lambda text, other: [text.partition(other or "<"), text.rpartition(other or "<")],
    "strip": lambda text, other: [text.strip(), text.lstrip(), text.rstrip("\n"), text.strip(other)],
    "remove": lambda text, other: [text.removeprefix(other), text.removesuffix(other)],
    "slice": lambda text, other: [text[1:], text[:-1], text[::-1], text[len(other) :], list(text)],
    "replace": lambda text, other: [text.replace(other, ""), text.replace(other, "x", 1), text.replace("", other)],
    "search": lambda text, other: [other in text, text.find(other), text.rfind(other), text.count(other)],
    "ends": lambda text, other: [text.startswith(other), text.endswith((other, "t"))],
    "compare": lambda text, other: [text == other, other == text, text != other, text < other, other < text],
    "look up": lambda text, other: {other: 1, "<t>": 2}.get(text),
    "join": lambda text, other: [text + "x", "x" + text, text * 2, f"{'x'}%s" % text, text.join("ab"), str(text)],
    "case": lambda text, other: [text.upper(), text.title(), text.center(9), text.isspace(), text.isascii()],
}


def restored(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(restored, value))
    return MARKS.restore(value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", list(OPERATIONS))
@examples(60)
@given(text=texts, other=texts)
@example(text="a</t>t>\n\n<t", other="</t>")
@example(text="<t>", other="<t>")
def test_an_operation_gives_the_marked_text_of_its_result(name: str, text: str, other: str) -> None:
    operation = OPERATIONS[name]
    result = operation(MARKS.track(MARKS.mark(text)), other)
    assert restored(result) == operation(text, other)
    if name not in ("replace", "partition"):  # these put the other text into the result, or return it
        assert "<" not in "".join(map(str.__str__, texts_of(result)))


@examples(100)
@given(text=texts)
def test_text_that_is_formatted_or_dumped_keeps_its_marks(text: str) -> None:
    marked = MARKS.track(MARKS.mark(text))
    for result in ("".join(["a", marked]), f"{marked}", "{}".format(marked), json.dumps({marked: [marked]})):  # noqa: UP032
        assert "<" not in str.__str__(result)


def test_only_texts_with_a_mark_are_tracked_and_all_of_them_are() -> None:
    value = {"a": ["<b", ("<", 1)], "<c": "d", "e": None}
    tracked = MARKS.track(MARKS.mark(value))
    assert [type(text) for text in texts_of(tracked)] == [str, MarkedText, str, MarkedText, MarkedText, str]
    assert tracked == value
    assert MARKS.mark(value) == {"a": [f"{MARK}b", (MARK, 1)], f"{MARK}c": "d", "e": None}


def test_a_mark_occurs_in_no_text() -> None:
    marks = choose_marks("<[", [f"a{MARK}", "b"])
    assert marks.mark(f"{MARK}<[") == MARK + chr(0xF0001) + chr(0xF0002)


def test_texts_that_leave_no_mark_are_refused() -> None:
    with pytest.raises(RowError, match="private-use"):
        choose_marks("<", ["".join(map(chr, range(0xF0000, 0xFFFFE)))])
