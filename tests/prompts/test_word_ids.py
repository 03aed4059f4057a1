"""Words as the token ids they can have inside a text."""

from __future__ import annotations

from batchgen.prompts.token_values import WordIds
from tests.tiny_models import EOS, byte_tokenizer, merging_tokenizer, metaspace_tokenizer


def test_a_word_is_banned_with_and_without_a_space_before_it() -> None:
    assert WordIds(byte_tokenizer()).sequences("ab") == [tuple(b"ab"), tuple(b" ab")]


def test_merges_with_the_space_are_another_way() -> None:
    tokenizer = merging_tokenizer()
    expected = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("answer", " answer")]
    assert WordIds(tokenizer).sequences("answer") == expected
    assert expected[0] != expected[1][1:]


def test_tokenizer_that_puts_a_space_before_the_first_word_knows_the_word_inside_too() -> None:
    tokenizer = metaspace_tokenizer()
    texts = ["".join(tokenizer.convert_ids_to_tokens(list(ids))) for ids in WordIds(tokenizer).sequences("the")]
    assert "the" in texts
    assert "\u2581the" in texts


def test_control_tokens_are_meant() -> None:
    assert WordIds(byte_tokenizer(add_bos=True)).single("<eos>") == EOS


def test_text_of_more_than_one_token_is_none() -> None:
    words = WordIds(byte_tokenizer())
    assert (words.single("a"), words.single("ab"), words.single("")) == (ord("a"), None, None)
