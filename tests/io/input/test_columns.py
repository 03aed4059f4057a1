"""The columns that make the prompt, and their values."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.errors import RowError
from batchgen.io.input.columns import missing_column, prompt_columns
from batchgen.spec.job_spec import InputSpec


def columns_of(**settings: Any) -> Any:
    return prompt_columns(InputSpec(path="x.jsonl", **settings))


def test_settings_name_their_columns() -> None:
    columns = columns_of(prompt="question", id="key")
    assert dict(columns.settings) == {"key": "id", "question": "prompt"}


def test_template_names_its_variables() -> None:
    columns = columns_of(template="{% for x in choices %}{{ x }}{% endfor %} {{ question|trim }}", system="rules")
    assert dict(columns.settings) == {"choices": "template", "question": "template", "rules": "system"}


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
