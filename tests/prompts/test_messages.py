"""Message lists as Parquet and JSON lines give them."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.errors import RowError
from batchgen.prompts.messages import message_list


def test_keys_that_are_null_are_dropped_and_others_kept() -> None:
    messages = [{"role": "user", "content": "note b", "name": "kim", "tool_calls": None}]
    assert message_list({"m": messages}, "m") == [{"role": "user", "content": "note b", "name": "kim"}]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "note "}, {"type": "text", "text": "d", "image_url": None}]
    assert message_list({"m": [{"role": "user", "content": parts}]}, "m") == [{"role": "user", "content": "note d"}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no messages"),
        (None, "expected a list of messages, found null"),
        ("hi", "expected a list of messages, found text"),
        (["hi"], "messages[0]: expected an object with role and content, found text"),
        ([{"role": "user", "content": None}], "messages[0].content: expected text, found null"),
        ([{"role": "user"}], "messages[0].content: expected text, found null"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 1}], "messages[1].content: expected text"),
        ([{"role": 1, "content": "a"}], "messages[0].role: expected text, found the number 1"),
        ([{"content": "a"}], "messages[0].role: expected text, found null"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0]: expected a part of the type"),
        ([{"role": "user", "content": [{"type": "image"}]}], "found the type 'image'"),
        ([{"role": "user", "content": ["a"]}], "found text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text: expected text"),
    ],
)
def test_a_bad_message_is_named(messages: Any, words: str) -> None:
    with pytest.raises(RowError) as caught:
        message_list({"m": messages}, "m")
    assert words in str(caught.value)
    assert "column 'm'" in str(caught.value)
