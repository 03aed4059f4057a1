"""Token ids to text, and stop strings across token borders. A token is a byte unless another tokenizer is named."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from batchgen.prompts.detokenize import BEGINNING, Detokenizer, Preceding, StopStringMatcher, TokenTexts
from tests.examples import examples
from tests.tiny_models import EOS, IM_END, byte_tokenizer, merging_tokenizer, metaspace_tokenizer

BYTES = Detokenizer(byte_tokenizer())


def feed(matcher: StopStringMatcher, token_ids: list[int]) -> int | None:
    """Return how many tokens the matcher took until it stopped; None if it did not."""
    return next((n for n, token_id in enumerate(token_ids, 1) if matcher.feed(token_id)), None)


def test_ids_that_the_tokenizer_lacks_are_no_text() -> None:
    assert BYTES.decode([*b"a", 262, *b"b", 10_000]) == "ab"


def test_special_tokens_are_no_text_and_other_added_tokens_are() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["</think>"])
    assert Detokenizer(tokenizer).decode([*b"a", IM_END, 261, EOS]) == "a</think>"


def test_spaces_before_punctuation_stay() -> None:
    assert BYTES.decode([*b"a , b ."]) == "a , b ."


def test_a_stop_string_may_span_tokens() -> None:
    matcher = StopStringMatcher(BYTES, ["END"])
    assert feed(matcher, [*b"xENED END yy"]) == 9
    assert matcher.text == "xENED "


def test_the_earliest_stop_string_cuts() -> None:
    matcher = StopStringMatcher(BYTES, ["c", "abc"])
    assert feed(matcher, [*b"xabc"]) == 4
    assert matcher.text == "x"


def test_a_stop_string_may_begin_and_end_in_the_middle_of_a_token() -> None:
    tokenizer = merging_tokenizer()
    ids = tokenizer.encode("The answer is 42.", add_special_tokens=False)
    matcher = StopStringMatcher(Detokenizer(tokenizer), ["swer i"])
    assert feed(matcher, ids) is not None
    assert matcher.text == "The an"


def test_a_stop_string_of_many_bytes_a_character_is_found() -> None:
    matcher = StopStringMatcher(BYTES, ["é😀"])
    assert feed(matcher, [*"aé😀b".encode()]) == 7
    assert matcher.text == "a"


def test_a_stop_string_after_a_characters_last_bytes_is_found() -> None:
    matcher = StopStringMatcher(BYTES, ["\n"])
    assert feed(matcher, [*"日\n".encode()]) == 4
    assert matcher.text == "日"


def test_an_incomplete_character_is_no_replacement_character_yet() -> None:
    matcher = StopStringMatcher(BYTES, ["\ufffd"])
    assert feed(matcher, [*"日".encode()]) is None
    assert feed(matcher, [0xE6, *b"a"]) == 2


def test_the_text_of_special_tokens_is_not_searched() -> None:
    assert feed(StopStringMatcher(BYTES, ["<eos>"]), [*b"a", EOS, *b"b"]) is None
    assert feed(StopStringMatcher(BYTES, ["ab"]), [*b"a", EOS, 262, *b"b"]) == 4


def test_the_text_without_a_stop_is_the_whole_text() -> None:
    matcher = StopStringMatcher(BYTES, ["zz"])
    assert feed(matcher, [*b"abc"]) is None
    assert matcher.text == "abc"
    matcher = StopStringMatcher(BYTES, [])
    assert feed(matcher, [*b"abc"]) is None
    assert matcher.text == "abc"


def test_a_stop_string_whose_space_is_dropped_at_the_beginning_of_a_window_is_found() -> None:
    """SentencePiece drops a space at the beginning of what it decodes, and so at the beginning of a window."""
    tokenizer = metaspace_tokenizer()
    ids = tokenizer.encode("Hello there, how is the weather? The answer is 42.", add_special_tokens=False)
    matcher = StopStringMatcher(Detokenizer(tokenizer), [" answer"])
    assert feed(matcher, ids) is not None
    assert matcher.text == "Hello there, how is the weather? The"


def test_the_cost_of_a_token_does_not_grow_with_the_completion() -> None:
    class Counting(Detokenizer):
        longest = 0

        def decode(self, token_ids: Iterable[int], after: Preceding = BEGINNING) -> str:
            ids = list(token_ids)
            self.longest = max(self.longest, len(after.token_ids) + len(ids))
            return super().decode(ids, after)

    counting = Counting(byte_tokenizer())
    assert feed(StopStringMatcher(counting, ["END"]), [*b"x"] * 500) is None
    assert counting.longest < 20


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), merging_tokenizer()], ids=["byte", "merging"])
@examples(80)
@given(data=st.data())
def test_a_matcher_stops_at_the_first_token_with_which_the_text_contains_a_stop_string(
    tokenizer: PreTrainedTokenizerFast, data: st.DataObject
) -> None:
    text = st.text("ab é😀\n", min_size=1, max_size=3)
    stop = data.draw(st.lists(text, min_size=1, max_size=3))
    ids = data.draw(st.one_of(
        st.lists(st.integers(0, 300), max_size=40),
        st.text("ab é😀\n", max_size=30).map(lambda t: tokenizer.encode(t, add_special_tokens=False)),
    ))  # fmt: skip
    detokenizer = Detokenizer(tokenizer)
    matcher = StopStringMatcher(detokenizer, stop)
    texts = [detokenizer.decode(ids[:n]) for n in range(1, len(ids) + 1)]
    expected = next((n for n, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
    assert feed(matcher, ids) == expected
    if expected is not None:
        found = texts[expected - 1]
        assert matcher.text == found[: min(found.find(s) for s in stop if s in found)]


def test_token_texts_keep_their_space_and_their_bytes() -> None:
    tokenizer = metaspace_tokenizer()
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode("the answer", add_special_tokens=False)
    assert "".join(texts[token_id] for token_id in ids) == " the answer"
    assert TokenTexts(byte_tokenizer())[0xC3] == "\ufffd"
    assert TokenTexts(byte_tokenizer())[EOS] == "<eos>"
    assert TokenTexts(byte_tokenizer())[262] == ""
