"""Rows to token ids with the byte tokenizer: a token is a byte or a control token, so counts can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.errors import ModelError
from tests.prompts.encoding import encoder, error_of, row
from tests.tiny_models import (
    BOS,
    CHATML,
    CLOCK,
    DEFAULT_SYSTEM,
    IM_END,
    IM_START,
    NO_SYSTEM,
    TAIL,
    WITH_BOS,
    byte_tokenizer,
)


def test_a_prompt_is_the_user_turn_of_the_chat_template() -> None:
    assert encoder().encode_row(row(prompt="hi")) == [IM_START, *b"user\nhi"]


def test_a_chat_gets_the_generation_prompt() -> None:
    messages = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]
    ids = encoder(byte_tokenizer(CHATML), messages="chat").encode_row(row(chat=messages))
    assert ids == [
        IM_START, *b"assistant\nb", IM_END, *b"\n",
        IM_START, *b"user\na", IM_END, *b"\n",
        IM_START, *b"assistant\n",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "expected"),
    [(CHATML, [20, 20, 30, 39]), (DEFAULT_SYSTEM, [39, 39, 30, 39])],
    ids=["chatml", "with a system message of its own"],
)
def test_absent_and_null_system_are_no_message_and_empty_is_one(template: str, expected: list[int]) -> None:
    chat = encoder(byte_tokenizer(template), prompt="prompt", system="system")
    rows: list[dict[str, Any]] = [{}, {"system": None}, {"system": ""}, {"system": "Be brief."}]
    assert [len(chat.encode_row(row(prompt="a", **values))) for values in rows] == expected


@pytest.mark.parametrize("leading", ["", "<bos>", "<bos><bos>"])
@pytest.mark.parametrize("template", [CHATML, WITH_BOS, "{{ bos_token }}" + WITH_BOS])
def test_every_path_has_exactly_one_bos(template: str, leading: str) -> None:
    tokenizer = byte_tokenizer(template, add_bos=True)
    chat = encoder(tokenizer).encode_row(row(prompt="hi"))
    assert len(chat) == 22
    assert (chat[0], chat.count(BOS)) == (BOS, 1)
    assert encoder(tokenizer, text="text").encode_row(row(text=leading + "hi")) == [BOS, *b"hi"]


def test_a_tokenizer_that_adds_no_bos_leaves_the_text_unchanged() -> None:
    assert encoder(text="text").encode_row(row(text="<bos><bos>hi")) == [BOS, BOS, *b"hi"]


def test_control_strings_in_raw_text_are_control_tokens() -> None:
    assert encoder(text="text").encode_row(row(text="a<|im_end|>b")) == [*b"a", IM_END, *b"b"]


@pytest.mark.parametrize("prompt", ["a<|im_end|>b", '{"k": "{x}"} {{ 7*7 }} ${HOME}'])
def test_text_in_a_row_is_data(prompt: str) -> None:
    assert encoder().encode_row(row(prompt=prompt)) == [IM_START, *b"user\n", *prompt.encode()]


def test_control_text_in_a_system_message_and_in_a_role_is_data() -> None:
    messages = [{"role": "<eos>", "content": "<|im_start|>"}, {"role": "user", "content": "<bos>"}]
    ids = encoder(messages="messages").encode_row(row(messages=messages))
    assert ids == [IM_START, *b"<eos>\n<|im_start|>", IM_START, *b"user\n<bos>"]


def test_the_template_can_trim_around_control_text() -> None:
    tokenizer = byte_tokenizer("{{ messages[0]['content'] | trim }}")
    assert encoder(tokenizer).encode_row(row(prompt=" <eos>\n")) == [*b"<eos>"]


def test_a_template_value_is_data_too() -> None:
    ids = encoder(template="{{ a }}|{{ b }}").encode_row(row(a="<eos>", b="{{ a }}"))
    assert ids == [IM_START, *b"user\n<eos>|{{ a }}"]


def test_a_template_goes_with_a_system_column() -> None:
    ids = encoder(template="{{ a }}", system="s").encode_row(row(a="x", s="y"))
    assert ids == [IM_START, *b"system\ny", IM_START, *b"user\nx"]


def test_what_the_chat_template_raises_is_the_rows_error() -> None:
    chat = encoder(byte_tokenizer(NO_SYSTEM), prompt="prompt", system="system")
    text = error_of(chat, row(prompt="a", system="b"))
    assert "no system role here" in text
    assert "rows.jsonl line 3" in text
    assert len(chat.encode_row(row(prompt="a"))) == 20


def test_any_failure_of_a_chat_template_is_the_rows_error() -> None:
    chat = encoder(byte_tokenizer("{{ messages[0]['content'] + 1 }}"))
    assert "chat template" in error_of(chat, row(prompt="a"))


@pytest.mark.parametrize("columns", [{"prompt": "prompt"}, {"messages": "messages"}, {"template": "{{ a }}"}])
def test_chat_without_a_chat_template_names_the_model(columns: dict[str, Any]) -> None:
    tokenizer = byte_tokenizer(None)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(ModelError, match=r"some/model.*no chat template"):
        encoder(tokenizer, **columns)


def test_raw_text_and_token_ids_need_no_chat_template() -> None:
    assert encoder(byte_tokenizer(None), text="text").encode_row(row(text="a")) == [97]
    assert encoder(byte_tokenizer(None), token_ids="ids").encode_row(row(ids=[97])) == [97]


def test_the_templates_clock_is_fixed_in_the_job_and_nowhere_else() -> None:
    tokenizer = byte_tokenizer(CLOCK)
    chat = encoder(tokenizer)
    first, second = (chat.encode_row(row(prompt="a")) for _ in range(2))
    assert first == second
    assert bytes(first[:16]) == b"12:00:00.123456\n"
    elsewhere = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert "12:00:00.123456" not in str(elsewhere)


def test_token_ids_are_used_unchanged() -> None:
    ids = [BOS, BOS, 0, IM_END, 263]
    assert encoder(byte_tokenizer(add_bos=True), token_ids="ids").encode_row(row(ids=ids)) == ids


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "found null"),
        ("1 2", "found text"),
        ([], "no tokens"),
        ([1, True], "token_ids[1] is true"),
        ([1.0], "token_ids[0] is the number 1.0"),
        ([0, 264], "token 1 is 264"),
        ([-1], "token 0 is -1"),
    ],
)
def test_token_ids_are_integers_that_the_model_has(value: Any, words: str) -> None:
    text = error_of(encoder(token_ids="ids"), row(ids=value))
    assert words in text
    assert text.startswith("rows.jsonl line 3: column 'ids': ")


def test_text_whose_tokens_the_model_lacks_is_refused() -> None:
    text = error_of(encoder(vocab_size=256), row(prompt="a"))
    assert f"token 0 is {IM_START}; the model's ids go from 0 to 255" in text


@pytest.mark.parametrize("mode", ["prompt", "text"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"q": None}, "found null"),
        ({}, "is missing"),
        ({"q": 123}, "found the number 123"),
        ({"q": ["note a"]}, "found a list"),
    ],
    ids=["null", "missing", "number", "list"],
)
def test_a_prompt_that_is_not_text_names_row_and_column(mode: str, values: dict[str, Any], words: str) -> None:
    columns: dict[str, Any] = {mode: "q"}
    text = error_of(encoder(**columns), row(**values))
    assert text.startswith("rows.jsonl line 3: column 'q'")
    assert words in text


def test_a_system_value_that_is_not_text_names_its_column() -> None:
    assert "column 's': expected text, found the number 1" in error_of(encoder(prompt="p", system="s"), row(p="a", s=1))


def test_blank_text_is_text() -> None:
    assert encoder(text="text").encode_row(row(text="   ")) == [*b"   "]
    assert encoder().encode_row(row(prompt="")) == [IM_START, *b"user\n"]


def test_an_empty_text_is_refused_unless_there_is_a_bos() -> None:
    assert "column 'text': the prompt has no tokens" in error_of(encoder(text="text"), row(text=""))
    assert encoder(byte_tokenizer(add_bos=True), text="text").encode_row(row(text="")) == [BOS]


def test_half_a_surrogate_pair_is_the_rows_error() -> None:
    assert "half of a surrogate pair at character 1" in error_of(encoder(text="text"), row(text="a\ud83d"))
    assert "half of a surrogate pair" in error_of(encoder(byte_tokenizer(TAIL)), row(prompt="a\ud83d"))
