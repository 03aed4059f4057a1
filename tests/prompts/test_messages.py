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


def calling(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
        **fields,
    }


@pytest.mark.parametrize("fields", [{}, {"content": None}])
def test_content_may_be_null_or_absent_beside_tool_calls(fields: dict[str, Any]) -> None:
    assert message_list({"m": [calling({"a": 1}, **fields)]}, "m") == [calling({"a": 1})]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [('{"a": [1, null]}', {"a": [1, None]}), ("", {}), (" ", {}), ({"a": "[1]"}, {"a": "[1]"}), ({}, {})],
)
def test_arguments_of_a_call_are_decoded_from_json_text(text: Any, arguments: Any) -> None:
    assert message_list({"m": [calling(text, content="x")]}, "m") == [calling(arguments, content="x")]
    flat = {"role": "assistant", "content": "x", "tool_calls": [{"name": "f", "arguments": text}]}
    assert message_list({"m": [flat]}, "m")[0]["tool_calls"] == [{"name": "f", "arguments": arguments}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no messages"),
        (None, "expected a list of messages, found null"),
        ("hi", "expected a list of messages, found text"),
        (["hi"], "messages[0]: expected an object with role and content, found text"),
        ([{"role": "user", "content": None}], "messages[0].content: expected text, found null"),
        ([{"role": "user"}], "messages[0].content: expected text, found null"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content: expected text, found null"),
        ([calling("{")], "messages[0].tool_calls[0].function.arguments: not valid JSON at column 2"),
        ([calling("[1]")], "messages[0].tool_calls[0].function.arguments: expected a JSON object, found a list"),
        ([{"from": "human", "value": None}], "messages[0].value: expected text, found null"),
        ([{"from": 1, "value": "a"}], "messages[0].from: expected text, found the number 1"),
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
