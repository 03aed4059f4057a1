"""Which columns make the prompt, and integer lists as arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import RowError
from batchgen.io.input.columns import missing_column, plain_lists, prompt_columns
from batchgen.spec.job_spec import InputSpec


def columns_of(**settings: Any) -> Any:
    return prompt_columns(InputSpec(path="x.jsonl", **settings))


def test_settings_name_their_columns() -> None:
    columns = columns_of(prompt="question", id="key")
    assert dict(columns.settings) == {"key": "id", "question": "prompt"}


def test_template_names_its_variables() -> None:
    columns = columns_of(template="{% for x in choices %}{{ x }}{% endfor %} {{ question|trim }}", system="rules")
    assert dict(columns.settings) == {"choices": "template", "question": "template", "rules": "system"}


def test_system_template_names_its_variables_and_plain_text_none() -> None:
    columns = columns_of(prompt="question", system_template="Write {{ lang }}.")
    assert dict(columns.settings) == {"lang": "system_template", "question": "prompt"}
    assert dict(columns_of(prompt="question", system_template="Be brief.").settings) == {"question": "prompt"}


def test_only_the_name_of_a_column_of_the_chat_template_is_one() -> None:
    columns = columns_of(prompt="question", tools="calls", documents=[{"a": 1}], chat_template_kwargs={"b": 1})
    assert dict(columns.settings) == {"question": "prompt", "calls": "tools"}


def test_values_for_the_chat_template_as_structs_and_as_json_text() -> None:
    """A null field is absent where all rows share one struct; in JSON it is what was written."""
    columns = columns_of(prompt="question", tools="calls", chat_template_kwargs="arguments")
    tools = [{"name": b"a", "x": None, "y": {"z": None}}]
    assert columns.plain("calls", tools, null_is_absent=True) == [{"name": "a", "y": {}}]
    assert columns.plain("calls", '[{"name": "a", "x": null}]', null_is_absent=True) == [{"name": "a", "x": None}]
    assert columns.plain("arguments", {"a": None, "b": False}, null_is_absent=True) == {"b": False}
    with pytest.raises(RowError, match="not valid JSON"):
        columns.plain("arguments", "a")


def test_an_id_may_be_bytes_that_are_not_text() -> None:
    columns = columns_of(prompt="prompt", id="key")
    assert (columns.plain("key", b"a1"), columns.plain("key", b"\xff")) == ("a1", b"\xff")


def test_missing_column_suggests_the_nearest() -> None:
    error = missing_column("x.parquet", "prompt", "promt", ["id", "prompt"])
    assert str(error) == (
        "x.parquet: no column 'promt' (input.prompt); did you mean 'prompt'? the columns are id, prompt"
    )


def test_messages_lose_null_keys_but_not_null_content() -> None:
    columns = columns_of(messages="chat")
    chat = [{"role": "user", "content": None, "name": None}, None]
    assert columns.plain("chat", chat) == [{"role": "user", "content": None}, None]


def test_an_inner_null_is_absent_only_where_all_rows_share_one_struct() -> None:
    columns = columns_of(messages="chat")
    chat = [{"role": "tool", "content": [{"type": "text", "text": b"a", "url": None}]}]
    assert columns.plain("chat", chat, null_is_absent=True)[0]["content"] == [{"type": "text", "text": "a"}]
    assert columns.plain("chat", chat)[0]["content"][0]["url"] is None


@pytest.mark.parametrize(
    ("text", "words"), [("[{]", "column 3"), ('[{"a":1,"a":2}]', 'key "a"'), ('["\\ud83d"]', "surrogate")]
)
def test_messages_as_json_text(text: str, words: str) -> None:
    columns = columns_of(messages="chat")
    assert columns.plain("chat", '[{"role":"user","content":"a"}]') == [{"role": "user", "content": "a"}]
    with pytest.raises(RowError, match=words):
        columns.plain("chat", text)


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list], ids=lambda make: make.__name__)
@pytest.mark.parametrize("item", [pa.int32(), pa.uint16(), pa.int64()], ids=str)
def test_plain_lists_are_values_and_lengths(list_type: Any, item: pa.DataType) -> None:
    found = plain_lists(pa.array([[1, 2, 3], [], [4]], list_type(item)))
    assert found is not None
    assert (found.values.tolist(), found.lengths.tolist()) == ([1, 2, 3, 4], [3, 0, 1])


def test_slice_of_plain_lists_has_only_its_own_values() -> None:
    found = plain_lists(pa.array([[1], [2, 3], [4, 5], [6]], pa.list_(pa.int32())).slice(1, 2))
    assert found is not None
    assert (found.values.tolist(), found.lengths.tolist()) == ([2, 3, 4, 5], [2, 2])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], None], pa.list_(pa.int32())),
        pa.array([[1, None]], pa.list_(pa.int32())),
        pa.array([[1.0]], pa.list_(pa.float64())),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([[1]], pa.list_view(pa.int32())),
        pa.array([None], pa.null()),
    ],
    ids=["null list", "null item", "floats", "fixed size", "view", "nulls"],
)
def test_other_lists_are_not_plain(column: pa.Array) -> None:
    assert plain_lists(column) is None
