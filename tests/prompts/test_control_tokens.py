"""Control strings: where a text is cut, and how they are hidden in a row's own text."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from batchgen.errors import RowError
from batchgen.prompts.control_tokens import ControlTokens
from tests.tiny_models import EOS, IM_END, PAD, byte_tokenizer

MARKS = [chr(0xF0000 + n) for n in range(4)]


def test_text_is_cut_at_control_tokens() -> None:
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


def test_a_token_takes_the_whitespace_it_is_said_to_take() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)], special_tokens=True)
    assert list(ControlTokens(tokenizer).split("a \n<l> b <r>\u2003\tc ")) == [("a", 261), (" b ", 262), ("c ", None)]


def test_a_value_without_control_text_is_not_touched() -> None:
    value = [{"role": "user", "content": "plain"}]
    hidden, table = ControlTokens(byte_tokenizer()).escape(value)
    assert hidden is value
    assert table == {}


def test_hidden_text_comes_back() -> None:
    value: list[Any] = [{"content": "a<eos>b<pad><eos>", "calls": [{"x": "<pad>", "n": 1}]}]
    hidden, table = ControlTokens(byte_tokenizer()).escape(value)
    assert hidden == [{"content": f"a{MARKS[0]}b{MARKS[1]}{MARKS[0]}", "calls": [{"x": MARKS[1], "n": 1}]}]
    assert hidden[0]["content"].translate(table) == "a<eos>b<pad><eos>"


def test_a_mark_occurs_nowhere_else() -> None:
    hidden, table = ControlTokens(byte_tokenizer()).escape([MARKS[0], "<eos>"], also_used=MARKS[1])
    assert hidden == [MARKS[0], MARKS[2]]
    assert table == {ord(MARKS[2]): "<eos>"}


def test_a_text_that_leaves_no_mark_is_refused() -> None:
    with pytest.raises(RowError, match="private-use"):
        ControlTokens(byte_tokenizer()).escape("<|im_end|>" + "".join(map(chr, range(0xF0000, 0xFFFFE))))


def test_a_tokenizer_without_control_tokens_cuts_nothing() -> None:
    class Bare:
        all_special_tokens: tuple[str, ...] = ()
        added_tokens_decoder: dict[int, AddedToken] = {}  # noqa: RUF012

    control = ControlTokens(Bare())  # type: ignore[arg-type]
    assert list(control.split("a<eos>")) == [("a<eos>", None)]


def test_ids_belong_to_their_strings() -> None:
    assert ControlTokens(byte_tokenizer()).text_to_id["<|im_end|>"] == IM_END
