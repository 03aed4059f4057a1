"""Which columns make the prompt, and integer lists as arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.errors import RowError
from batchgen.io.input.columns import ABSENT, find_path, find_value, missing_column, plain_lists, prompt_columns
from batchgen.spec.job_spec import InputSpec
from tests.examples import examples


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
    assert columns.values("calls", pa.array([tools])) == [[{"name": "a", "y": {}}]]
    for text in (pa.string(), pa.binary(), pa.json_()):
        array = pa.array(['[{"name": "a", "x": null}]'], text)
        assert columns.values("calls", array) == [[{"name": "a", "x": None}]]
    assert columns.values("arguments", pa.array([{"a": None, "b": False}])) == [{"b": False}]
    with pytest.raises(RowError, match="not valid JSON"):
        columns.plain("arguments", "a")


def test_an_id_may_be_bytes_that_are_not_text() -> None:
    columns = columns_of(prompt="prompt", id="key")
    assert columns.values("key", pa.array([b"a1", b"\xff"])) == ["a1", b"\xff"]


NESTED = [
    pa.field("id", pa.int64()),
    pa.field("a.b", pa.int8()),
    pa.field("a", pa.struct([("b", pa.string()), ("c", pa.int16()), ("d.e", pa.int32())])),
    pa.field("body", pa.struct([("id", pa.int64()), ("messages", pa.list_(pa.string()))])),
]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("id", (0,)),
        ("a.b", (1,)),  # a column of that name is preferred
        ("a.c", (2, 1)),
        ("a.d.e", (2, 2)),
        ("body.messages", (3, 1)),
        ("body.messages.x", None),
        ("a.b.c", None),
        ("", None),
    ],
)
def test_name_with_dots_is_a_column_or_else_a_field(name: str, path: tuple[int, ...] | None) -> None:
    assert find_path(NESTED, name) == path


names = st.sampled_from(["a", "b", "a.b", "b.a", ".", "a."])
records = st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3))


@given(record=st.dictionaries(names, records, min_size=1), parts=st.lists(names, min_size=1, max_size=4))
@examples(300)
def test_objects_and_structs_are_searched_alike(record: dict[str, Any], parts: list[str]) -> None:
    name = ".".join(parts)
    path = find_path(list(pa.RecordBatch.from_pylist([record]).schema), name)
    value: Any = record
    for i in path or ():
        value = list(value.values())[i]
    assert find_value(record, name) is (ABSENT if path is None else value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ids", "no column 'ids' (input.prompt); did you mean 'id'? the columns are id, a.b, a, body"),
        ("body.mesages", "did you mean 'body.messages'? 'body' has the fields id, messages"),
        ("bdy.messages", "did you mean 'body.messages'? the columns are id, a.b, a, body"),
        ("body.messages.content", "'body.messages' is list<item: string>, which has no fields"),
        ("zzz", "no column 'zzz' (input.prompt); the columns are id, a.b, a, body"),
    ],
)
def test_missing_column_names_what_exists_and_the_nearest(name: str, words: str) -> None:
    assert words in str(missing_column("x.parquet", "prompt", name, NESTED))


def test_messages_lose_null_keys_but_not_null_content() -> None:
    columns = columns_of(messages="chat")
    chat = [{"role": "user", "content": None, "name": None}, None]
    assert columns.plain("chat", chat) == [{"role": "user", "content": None}, None]


def test_an_inner_null_is_absent_only_where_all_rows_share_one_struct() -> None:
    columns = columns_of(messages="chat")
    chat = [{"role": "tool", "content": [{"type": "text", "text": "a", "url": None}]}]
    assert columns.values("chat", pa.array([chat]))[0][0]["content"] == [{"type": "text", "text": "a"}]
    assert columns.plain("chat", chat)[0]["content"][0]["url"] is None


def test_sampling_values_lose_nulls_but_not_those_of_a_schema_in_json() -> None:
    columns = columns_of(prompt="question", sampling="own")
    own = {"n": None, "logit_bias": {"7": None}, "structured": {"json_schema": {"const": None}}}
    assert columns.plain("own", own) == {"logit_bias": {}, "structured": own["structured"]}
    maps = pa.array([{"logit_bias": [("7", 1.0)]}], pa.struct([("logit_bias", pa.map_(pa.string(), pa.float64()))]))
    assert columns.values("own", maps) == [{"logit_bias": {"7": 1.0}}]


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
