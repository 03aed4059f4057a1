"""The visiting order, on short texts with blocks of 4 tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.plan.order import prefix_order, shared_length, shared_with_next

SIZE = 4


def tokens(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def order_of(texts: list[str], max_tokens: list[int] | None = None) -> list[str]:
    prompts = [tokens(text) for text in texts]
    order = prefix_order(prompts, range(len(texts)), max_tokens or [8] * len(texts), SIZE)
    return [texts[row] for row in order]


def test_rows_that_share_blocks_are_neighbours() -> None:
    assert order_of(["aaaa1", "bbbb1", "aaaa2", "bbbb2"]) == ["aaaa1", "aaaa2", "bbbb1", "bbbb2"]


def test_groups_come_in_the_order_of_their_first_row() -> None:
    assert order_of(["bbbb1", "aaaa1", "bbbb2"]) == ["bbbb1", "bbbb2", "aaaa1"]


def test_a_row_that_ends_on_the_border_comes_before_those_that_go_on() -> None:
    assert order_of(["aaaab", "aaaabbbb", "aaaa"]) == ["aaaa", "aaaab", "aaaabbbb"]


def test_the_longest_expected_output_comes_first_among_equals() -> None:
    assert order_of(["aaaa1", "aaaa2", "aaaa3"], [4, 9, 4]) == ["aaaa2", "aaaa1", "aaaa3"]


def test_nested_groups_stay_together() -> None:
    texts = ["aaaabbbb1", "aaaacccc1", "aaaabbbb2", "aaaacccc2"]
    assert order_of(texts) == ["aaaabbbb1", "aaaabbbb2", "aaaacccc1", "aaaacccc2"]


def test_shared_length_is_counted_in_tokens() -> None:
    assert shared_length(tokens("abcd"), tokens("abxd")) == 2
    assert shared_length(tokens("abc"), tokens("abcdef")) == 3
    assert shared_length(tokens(""), tokens("a")) == 0


def test_shared_with_next_ends_with_nothing() -> None:
    assert shared_with_next([tokens("aab"), tokens("aac"), tokens("b")], [0, 1, 2]) == [2, 0, 0]
    assert shared_with_next([], []) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=14), max_size=30), st.sampled_from([1, 2, 3, 4]))
def test_the_order_is_depth_first(texts: list[str], size: int) -> None:
    prompts = [tokens(text) for text in texts]
    order = prefix_order(prompts, range(len(texts)), [1] * len(texts), size)
    assert sorted(order) == list(range(len(texts)))
    # Depth-first: the rows below every node of the block prefix tree lie next to each other.
    for stop in range(size, 15, size):
        for node in {text[:stop] for text in texts if len(text) >= stop}:
            places = [place for place, row in enumerate(order) if texts[row][:stop] == node]
            assert places == list(range(places[0], places[-1] + 1))
            if node in texts:  # who ends on the border comes first
                assert texts[order[places[0]]] == node
