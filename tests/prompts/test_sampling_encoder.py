"""Words as the token ids that they can have inside a text."""

from __future__ import annotations

from batchgen.prompts.sampling_encoder import WordEncoder
from tests.tiny_models import EOS, byte_tokenizer, merging_tokenizer, metaspace_tokenizer


def test_a_word_is_banned_with_and_without_a_space_before_it() -> None:
    assert WordEncoder(byte_tokenizer()).token_sequences("ab") == [tuple(b"ab"), tuple(b" ab")]


def test_merges_with_the_space_are_another_sequence() -> None:
    tokenizer = merging_tokenizer()
    expected = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("answer", " answer")]
    assert WordEncoder(tokenizer).token_sequences("answer") == expected
    assert expected[0] != expected[1][1:]


def test_a_word_inside_a_text_is_found_for_a_tokenizer_that_puts_a_space_before_the_first_word() -> None:
    tokenizer = metaspace_tokenizer()
    texts = [
        "".join(tokenizer.convert_ids_to_tokens(list(ids))) for ids in WordEncoder(tokenizer).token_sequences("the")
    ]
    assert "the" in texts
    assert "\u2581the" in texts


def test_control_strings_are_control_tokens() -> None:
    assert WordEncoder(byte_tokenizer(add_bos=True)).single_token("<eos>") == EOS


def test_text_of_more_than_one_token_is_none() -> None:
    words = WordEncoder(byte_tokenizer())
    assert (words.single_token("a"), words.single_token("ab"), words.single_token("")) == (ord("a"), None, None)
