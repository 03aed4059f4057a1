"""Control strings: where a text is split, and whether a row's own text may have made them."""

from __future__ import annotations

from tokenizers import AddedToken

from batchgen.prompts.control_tokens import ControlTokens
from tests.tiny_models import EOS, IM_END, PAD, byte_tokenizer


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


def test_a_control_string_is_possible_if_the_texts_have_its_signs() -> None:
    """The signs of `<eos>` are < and >, those of `<|im_end|>` also | and _; letters may have changed their case."""
    control, rendered = ControlTokens(byte_tokenizer()), "<|im_start|>a<|im_end|><eos>"
    assert control.possible(rendered, ["a < b", "c"]) == []
    assert control.possible(rendered, ["a <", "> b"]) == ["<eos>"]
    assert control.possible(rendered, ["<|im_", "END|>"]) == ["<|im_start|>", "<|im_end|>", "<eos>"]
    assert control.possible("a", ["<eos>"]) == []


def test_a_control_string_of_letters_is_always_possible() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["END"], special_tokens=True)
    assert ControlTokens(tokenizer).possible("<eos>END", ["a"]) == ["END"]


def test_marked_text_has_no_control_string() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["[INST]", "END"], special_tokens=True)
    control = ControlTokens(tokenizer)
    text = "<eos> [INST] END <pad>"
    marks = control.marks([text])
    assert control.strings(marks.mark(text)) == []
    assert marks.restore(marks.mark(text)) == text


def test_a_tokenizer_without_control_tokens_splits_nothing() -> None:
    class Bare:
        all_special_tokens: tuple[str, ...] = ()
        added_tokens_decoder: dict[int, AddedToken] = {}  # noqa: RUF012

    control = ControlTokens(Bare())  # type: ignore[arg-type]
    assert list(control.split("a<eos>")) == [("a<eos>", None)]


def test_ids_belong_to_their_strings() -> None:
    assert ControlTokens(byte_tokenizer()).text_to_id["<|im_end|>"] == IM_END
