"""Control strings: where a text is split, and how they are escaped in a row's own text."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from batchgen.errors import RowError
from batchgen.prompts.control_tokens import ControlTokens
from tests.tiny_models import EOS, IM_END, PAD, byte_tokenizer

ESCAPES = [chr(0xF0000 + n) for n in range(4)]


def test_text_is_split_at_control_tokens() -> None:
    segments = list(ControlTokens(byte_tokenizer()).split("a<eos><pad>b <|im_end|"))
    assert segments == [("a", EOS), ("", PAD), ("b <|im_end|", None)]


def test_the_longest_control_token_wins() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<eos>!"], special_tokens=True)
    assert list(ControlTokens(tokenizer).split("<eos>!<eos>")) == [("", 261), ("", EOS), ("", None)]


def test_a_token_that_is_not_special_is_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["</think>"])
    assert list(ControlTokens(tokenizer).split("a</think>b")) == [("a</think>b", None)]


def test_a_token_takes_the_whitespace_it_is_declared_to_take() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)], special_tokens=True)
    assert list(ControlTokens(tokenizer).split("a \n<l> b <r>\u2003\tc ")) == [("a", 261), (" b ", 262), ("c ", None)]


def test_a_value_without_control_text_is_unchanged() -> None:
    value = [{"role": "user", "content": "plain"}]
    escaped, table = ControlTokens(byte_tokenizer()).escape(value)
    assert escaped is value
    assert table == {}


def test_escaped_text_is_restored() -> None:
    value: list[Any] = [{"content": "a<eos>b<pad><eos>", "calls": [{"x": "<pad>", "n": 1}]}]
    escaped, table = ControlTokens(byte_tokenizer()).escape(value)
    assert escaped == [{"content": f"a{ESCAPES[0]}b{ESCAPES[1]}{ESCAPES[0]}", "calls": [{"x": ESCAPES[1], "n": 1}]}]
    assert escaped[0]["content"].translate(table) == "a<eos>b<pad><eos>"


def test_an_escape_occurs_nowhere_else() -> None:
    escaped, table = ControlTokens(byte_tokenizer()).escape([ESCAPES[0], "<eos>"], also_used=ESCAPES[1])
    assert escaped == [ESCAPES[0], ESCAPES[2]]
    assert table == {ord(ESCAPES[2]): "<eos>"}


def test_a_text_that_leaves_no_escape_is_refused() -> None:
    with pytest.raises(RowError, match="private-use"):
        ControlTokens(byte_tokenizer()).escape("<|im_end|>" + "".join(map(chr, range(0xF0000, 0xFFFFE))))


def test_a_tokenizer_without_control_tokens_splits_nothing() -> None:
    class Bare:
        all_special_tokens: tuple[str, ...] = ()
        added_tokens_decoder: dict[int, AddedToken] = {}  # noqa: RUF012

    control = ControlTokens(Bare())  # type: ignore[arg-type]
    assert list(control.split("a<eos>")) == [("a<eos>", None)]


def test_ids_belong_to_their_strings() -> None:
    assert ControlTokens(byte_tokenizer()).text_to_id["<|im_end|>"] == IM_END
