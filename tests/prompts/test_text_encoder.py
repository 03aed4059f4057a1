"""A rendered chat encoded by segments has the ids of the whole text; control strings in a row's text are ordinary text.

Every fact holds for three kinds of tokenizer: bytes, byte-level BPE with merges, and SentencePiece-like, for which
segments cannot simply be encoded apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchgen.errors import RowError
from batchgen.prompts.text_encoder import TextEncoder
from tests.examples import examples
from tests.tiny_models import SPECIALS, byte_tokenizer, merging_tokenizer, metaspace_tokenizer, wrap_tokenizer

TOKENIZERS: dict[str, PreTrainedTokenizerFast] = {
    "byte": byte_tokenizer(), "merging": merging_tokenizer(), "metaspace": metaspace_tokenizer()
}  # fmt: skip
ENCODERS = {name: TextEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}

every_tokenizer = pytest.mark.parametrize("name", list(TOKENIZERS))
_plain_pieces = st.sampled_from(
    ["user", "Hello there", " the", "\n", "\n\n", " ", "  ", "The answer is 42.", "é", "😀", "</think>", "<", "a"]
)
plain_texts = (
    st.lists(st.one_of(_plain_pieces, st.text(max_size=4)), max_size=12)
    .map("".join)
    .filter(lambda text: text.isprintable() or "\n" in text)
)
control_texts = st.lists(st.one_of(_plain_pieces, st.sampled_from(["<eos>", "<pad>", "<bos>"])), max_size=12).map(
    "".join
)


def whole(name: str, text: str) -> list[int]:
    ids: list[int] = TOKENIZERS[name].encode(text, add_special_tokens=False)
    return ids


def chat(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def encode_content(name: str, content: str, render: Callable[[str], str] = chat) -> list[int]:
    marks = ENCODERS[name].control_tokens.marks([content])
    return ENCODERS[name].encode_chat(render(marks.mark(content)), marks)


def without_specials(name: str, removed: tuple[str, ...]) -> Tokenizer:
    """Return the same tokenizer with the `removed` specials as ordinary text."""
    description = json.loads(TOKENIZERS[name].backend_tokenizer.to_str())
    for token in description["added_tokens"]:
        if token["content"] in removed:  # renamed, since the others must keep their ids
            token["content"] = f"\ue000{token['content']}"
    return Tokenizer.from_str(json.dumps(description))


@every_tokenizer
@examples(60)
@given(content=plain_texts)
def test_a_clean_chat_has_the_ids_of_the_whole_text(name: str, content: str) -> None:
    assert ENCODERS[name].encode_chat(chat(content)) == whole(name, chat(content))


@every_tokenizer
@examples(60)
@given(content=control_texts)
def test_control_text_has_the_ids_it_has_for_a_tokenizer_without_that_control(name: str, content: str) -> None:
    ordinary = without_specials(name, ("<eos>", "<pad>", "<bos>"))
    assert encode_content(name, content) == ordinary.encode(chat(content), add_special_tokens=False).ids


@every_tokenizer
@examples(60)
@given(content=plain_texts)
def test_clean_segments_beside_control_text_have_their_ids_too(name: str, content: str) -> None:
    """If one segment contains control text, every segment is encoded apart; that must not change the others."""
    before = whole(name, chat(content))
    assert encode_content(name, "<eos>", lambda text: chat(content) + "<|im_end|>" + text)[: len(before)] == before


@pytest.mark.parametrize("name", ["byte", "merging"])
@examples(60)
@given(pieces=st.lists(st.one_of(st.text(max_size=4), st.sampled_from(SPECIALS)), max_size=12))
def test_any_text_is_restored_and_has_no_control_token(name: str, pieces: list[str]) -> None:
    content = "".join(pieces)
    ids = encode_content(name, content, lambda marked: marked)
    assert TOKENIZERS[name].decode(ids, clean_up_tokenization_spaces=False) == content
    assert not set(ids) & set(TOKENIZERS[name].all_special_ids)


@every_tokenizer
@examples(60)
@given(content=plain_texts)
def test_marks_without_control_text_change_no_id(name: str, content: str) -> None:
    assert encode_content(name, content) == whole(name, chat(content))


@every_tokenizer
def test_a_segment_is_encoded_the_same_from_the_cache(name: str) -> None:
    encoder = TextEncoder(TOKENIZERS[name])
    assert encoder.encode_chat(chat("Hello")) == encoder.encode_chat(chat("Hello")) == whole(name, chat("Hello"))


@pytest.mark.parametrize("cache_chars", [0, 8, 1000])
def test_ids_do_not_depend_on_the_size_of_the_cache(cache_chars: int) -> None:
    encoder = TextEncoder(TOKENIZERS["merging"], cache_chars=cache_chars)
    for content in ("Hello", "the", "Hello there", "Hello", "the"):
        assert encoder.encode_chat(chat(content)) == whole("merging", chat(content))


def test_whitespace_that_a_control_token_takes_is_not_encoded() -> None:
    tokenizer = merging_tokenizer()
    tokenizer.add_tokens([AddedToken("<sep>", lstrip=True, rstrip=True)], special_tokens=True)
    text = "a \n<sep> \tb<|im_end|> <sep>\n\n<sep>"
    assert TextEncoder(tokenizer).encode_chat(text) == tokenizer.encode(text, add_special_tokens=False)


@every_tokenizer
def test_bos_goes_before_raw_text_once(name: str) -> None:
    make = {"byte": byte_tokenizer, "merging": merging_tokenizer, "metaspace": metaspace_tokenizer}[name]
    encoder = TextEncoder(make(add_bos=True))
    bos = TOKENIZERS[name].convert_tokens_to_ids("<bos>")
    assert encoder.encode_raw("Hello") == [bos, *whole(name, "Hello")]
    assert encoder.encode_raw("<bos><bos>Hello") == whole(name, "<bos>Hello")


def test_control_text_that_cannot_be_encoded_literally_is_refused() -> None:
    """A vocabulary that spells `<eos>` with merges has no other ids for that text than the control token."""
    pieces = ["<eos>", "<", "e", "o", "s", ">", "<e", "<eo", "<eos", "<bos>", "<pad>", "a"]
    merges = [("<", "e"), ("<e", "o"), ("<eo", "s"), ("<eos", ">")]
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<eos>", "<bos>", "<pad>")])
    encoder = TextEncoder(wrap_tokenizer(backend, None))
    marks = encoder.control_tokens.marks([])
    with pytest.raises(RowError, match="'<eos>'"):
        encoder.encode_chat(marks.mark("a<eos>"), marks)


def test_a_tokenizer_that_cannot_be_split_encodes_clean_text_whole_and_refuses_control_text() -> None:
    """`<word>` is a control token only where it stands alone, so that splitting at every `<word>` would be wrong."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<word>", single_word=True)], special_tokens=True)
    encoder = TextEncoder(tokenizer)
    assert encoder.encode_chat("a<word>b") == [*b"a<word>b"]
    marks = encoder.control_tokens.marks([])
    with pytest.raises(RowError, match="'<eos>', which this tokenizer cannot encode"):
        encoder.encode_chat(marks.mark("a<eos>"), marks)


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=20)
    assert TextEncoder(tokenizer).encode_raw("a text") == list(b"a text")
