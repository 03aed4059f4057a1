"""A completion is exactly the text that follows its prompt, for every kind of tokenizer, wherever the prompt ends.

So are the texts that stop strings are found in, that forms see, and that log-probabilities name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from batchgen.prompts.detokenize import (
    Detokenizer,
    Preceding,
    StopStringMatcher,
    TextSearch,
    TokenTexts,
)
from batchgen.prompts.grammar import GrammarCompiler, GrammarConstraint
from batchgen.sampling_params import Structured
from tests.prompts.tokenizer_kinds import KINDS
from tests.tiny_models import BOS, byte_tokenizer

REPLACED = "\ufffd"
CHARS = "abyes no.,'(\u00e9\u65e5\U0001f600\n"
TEXTS = st.one_of(
    st.text(CHARS, max_size=24),
    st.text(st.characters(exclude_characters=REPLACED, exclude_categories=["Cs"]), max_size=12),
)


class Kind(NamedTuple):
    """One tokenizer with what is made of it."""

    tokenizer: PreTrainedTokenizerFast
    detokenizer: Detokenizer
    unskipped: Detokenizer
    grammars: GrammarCompiler

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def special(self, text: str) -> int:
        return self.tokenizer.get_vocab()[text]


@cache
def kind(name: str) -> Kind:
    tokenizer = KINDS[name]()
    unskipped = Detokenizer(tokenizer, skip_special_tokens=False)
    return Kind(tokenizer, Detokenizer(tokenizer), unskipped, GrammarCompiler(tokenizer, len(tokenizer)))


def is_allowed(constraint: GrammarConstraint) -> list[int]:
    ids: list[int] = np.flatnonzero(np.unpackbits(constraint.allowed(), bitorder="little")).tolist()
    return ids


def first_stop(detokenizer: Detokenizer, ids: Sequence[int], after: Preceding, stop: Sequence[str]) -> int | None:
    """Return the number of tokens whose text is the first to contain a stop string."""
    texts = (detokenizer.decode(ids[:n], after).rstrip(REPLACED) for n in range(1, len(ids) + 1))
    return next((n for n, text in enumerate(texts, 1) if any(each in text for each in stop)), None)


def feed(matcher: StopStringMatcher, token_ids: Sequence[int]) -> int | None:
    return next((n for n, token_id in enumerate(token_ids, 1) if matcher.feed(token_id)), None)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_the_text_is_that_of_prompt_and_completion_less_that_of_the_prompt(name: str, text: str) -> None:
    ids = kind(name).encode(text)
    for detokenizer in (kind(name).detokenizer, kind(name).unskipped):
        whole = detokenizer.decode(ids)
        for cut in range(len(ids) + 1):
            prompt = detokenizer.decode(ids[:cut])
            is_inside_character = not whole.startswith(prompt)
            before = prompt.rstrip(REPLACED) if is_inside_character else prompt
            assert before + detokenizer.decode(ids[cut:], detokenizer.preceding(ids[:cut])) == whole


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_token_ids_have_the_text_that_follows_where_there_is_one(name: str, data: st.DataObject) -> None:
    """Where bytes of the completion spoil those of the prompt, no text follows."""
    ids = data.draw(st.lists(st.integers(0, len(kind(name).tokenizer) + 2), max_size=20))
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = kind(name).detokenizer
    whole, prompt = detokenizer.decode(ids), detokenizer.decode(ids[:cut])
    completion = detokenizer.decode(ids[cut:], detokenizer.preceding(ids[:cut]))
    lengths = range(len(prompt.rstrip(REPLACED)), len(prompt) + 1)
    following = [whole[n:] for n in lengths if whole.startswith(prompt[:n])]
    assert completion in following or not following


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stop_strings_are_found_in_the_text_that_follows(name: str, data: st.DataObject) -> None:
    detokenizer, ids = kind(name).detokenizer, kind(name).encode(data.draw(st.text(CHARS, max_size=30)))
    cut = data.draw(st.integers(0, len(ids)))
    after, ids = detokenizer.preceding(ids[:cut]), ids[cut:]
    text = detokenizer.decode(ids, after)
    start = data.draw(st.integers(0, len(text)))
    stop = [
        text[start : start + data.draw(st.integers(1, 4))] or "a",
        data.draw(st.text(CHARS, min_size=1, max_size=3)),
    ]
    matcher = StopStringMatcher(detokenizer, stop, after=after)
    expected = first_stop(detokenizer, ids, after, stop)
    assert feed(matcher, ids) == expected
    if expected is not None:
        text = detokenizer.decode(ids[:expected], after).rstrip(REPLACED)
        text = text[: min(text.find(each) for each in stop if each in text)]
    assert matcher.text == text


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stop_strings_with_special_tokens_cut_the_text_without_them(name: str, data: st.DataObject) -> None:
    of, special = kind(name), "<|im_end|>"
    before, after_it = (of.encode(data.draw(st.text("abyes no.", max_size=8))) for _ in range(2))
    before = list(filter(of.detokenizer.is_text, before))  # no <unk>
    ids = [*before, of.special(special), *after_it]
    cut = data.draw(st.integers(0, len(before)))
    preceding, unskipped = of.detokenizer.preceding(ids[:cut]), of.unskipped.preceding(ids[:cut])
    full, text = of.unskipped.decode(ids[cut:], unskipped), of.detokenizer.decode(before[cut:], preceding)
    start = data.draw(st.integers(0, full.index(special)))
    stop = [full[start : full.index(special) + len(special)]]
    matcher = StopStringMatcher(of.detokenizer, (), 0, preceding, TextSearch(of.unskipped, stop, 0, unskipped))
    assert feed(matcher, ids[cut:]) == len(before) - cut + 1
    num_cut = len(of.unskipped.decode(before[cut:], unskipped)) - start
    assert matcher.text == text[: len(text) - max(num_cut, 0)]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(CHARS, min_size=1, max_size=12), cut=st.integers(0, 20), seed=st.integers(0, 2**30))
def test_a_form_sees_the_text_that_follows(name: str, text: str, cut: int, seed: int) -> None:
    """The only text of a form is reached by the tokens that it was made of, and by any tokens that are allowed."""
    of = kind(name)
    ids = [token_id for token_id in of.encode(text) if of.detokenizer.is_text(token_id)]
    assume(ids)
    cut = min(cut, len(ids) - 1)
    after, ids = of.detokenizer.preceding(ids[:cut]), ids[cut:]
    completion = of.detokenizer.decode(ids, after)
    assume(completion)
    assume(REPLACED not in completion)
    form = Structured("choice", json.dumps([completion]))
    constraint = of.grammars.constraint(form, (), after)
    assert [constraint.feed(token_id) for token_id in ids] == [False] * (len(ids) - 1) + [True]
    assert constraint.error is None
    chosen: list[int] = []
    constraint, draw = of.grammars.constraint(form, (), after), random.Random(seed)
    while not chosen or not constraint.feed(chosen[-1]):
        chosen.append(draw.choice(is_allowed(constraint)))
    assert of.detokenizer.decode(chosen, after) == completion


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, cut=st.integers(0, 20))
def test_the_texts_of_single_tokens_are_together_the_text_that_follows(name: str, text: str, cut: int) -> None:
    detokenizer, ids = kind(name).unskipped, kind(name).encode(text)
    cut = min(cut, len(ids))
    after, ids, texts = detokenizer.preceding(ids[:cut]), ids[cut:], TokenTexts(kind(name).tokenizer)
    first = texts.__getitem__ if after.token_ids else texts.first
    joined = "".join([*map(first, ids[:1]), *(texts[token_id] for token_id in ids[1:])])
    assert joined == detokenizer.decode(ids, after) or REPLACED in joined


def test_a_space_is_dropped_only_where_no_text_precedes() -> None:
    of = kind("metaspace always")
    (cat,) = of.encode("cat")
    bos = of.special("<bos>")
    assert of.detokenizer.decode([cat]) == "cat"
    assert of.detokenizer.decode([cat], of.detokenizer.preceding([bos])) == "cat"
    assert of.detokenizer.decode([cat], of.detokenizer.preceding([cat, bos])) == " cat"
    assert of.unskipped.decode([cat], of.unskipped.preceding([bos])) == " cat"


def test_a_completion_begins_with_the_character_in_which_the_prompt_ends() -> None:
    detokenizer = Detokenizer(byte_tokenizer())
    after = detokenizer.preceding([*"\ufffd".encode(), BOS, 0xE6, 0x97])
    assert (after.text, after.incomplete) == ("\ufffd", b"\xe6\x97")
    assert detokenizer.decode([0xA5, *b"a"], after) == "\u65e5a"
    assert detokenizer.decode([*b"a"], after) == "a"  # not completed, so it stays the prompt's


def test_byte_tokens_that_are_no_text_without_their_last_character_are_no_text_of_the_prompt() -> None:
    """The tokenizer decodes them as one, so each is U+FFFD as long as one character is incomplete."""
    detokenizer = kind("byte fallback").detokenizer
    ids = kind("byte fallback").encode("a\u65e5\u00e9")
    assert detokenizer.decode(ids[:-1]) == "a\ufffd\ufffd\ufffd\ufffd"
    assert detokenizer.decode(ids[-1:], detokenizer.preceding(ids[:-1])) == "\u65e5\u00e9"
    valid = detokenizer.preceding(ids[:-2])
    assert detokenizer.decode([ids[-1], *ids[:1]], valid) == "\ufffda"  # spoils the prompt, which is not decoded again


def test_a_few_tokens_of_the_prompt_are_decoded() -> None:
    for name, text in [("byte-level BPE", "the answer " * 50), ("byte fallback", "\u65e5" * 200)]:
        after = kind(name).detokenizer.preceding(np.array(kind(name).encode(text), np.int32))
        assert 8 <= len(after.token_ids) <= 10


def test_a_form_that_cannot_complete_the_prompts_last_character_says_so() -> None:
    of = kind("bytes")
    constraint = of.grammars.constraint(Structured("choice", '["yes"]'), (), of.detokenizer.preceding([0xE6, 0x97]))
    assert is_allowed(constraint) == []
    assert constraint.error == "structured: the prompt ends inside a character with which no text of this form begins"
    constraint = of.grammars.constraint(Structured("regex", "\u65e5+"), (), of.detokenizer.preceding([0xE6, 0x97]))
    assert is_allowed(constraint) == [0xA5]
