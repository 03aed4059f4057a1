"""Lexicographic order, visiting order, and what a row shares with all rows before it, on short texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.order import Order, lexicographic_order, seen_lengths, visiting_order
from batchgen.plan.token_store import PackedTokens
from tests.examples import examples
from tests.plan.texts import common, forests, pack, shared_with_next

SIZE = 4
texts_of_two_letters = st.lists(st.text("ab", min_size=1, max_size=14), max_size=30)


def lexicographic(texts: Sequence[str]) -> Order:
    return lexicographic_order(pack(texts), range(len(texts)))


def visited(texts: Sequence[str], max_tokens: Sequence[int]) -> list[str]:
    order = visiting_order(lexicographic(texts), pack(texts), max_tokens, SIZE)
    return [texts[row] for row in order.positions]


def check_depth_first(texts: Sequence[str], order: Order, size: int) -> None:
    """The rows below every node of the block prefix tree are neighbours, one that ends on it before the others."""
    for stop in range(size, max(map(len, texts), default=0) + 1, size):
        for node in {text[:stop] for text in texts if len(text) >= stop}:
            indices = [visit_index for visit_index, row in enumerate(order.positions) if texts[row][:stop] == node]
            assert indices == list(range(indices[0], indices[-1] + 1))
            if node in texts:
                assert texts[order.positions[indices[0]]] == node


def test_a_prompt_comes_before_its_extensions() -> None:
    assert lexicographic(["ab", "abc", "a", "aa"]).positions.tolist() == [2, 3, 0, 1]


def test_equal_prompts_stay_in_input_order() -> None:
    assert lexicographic(["b", "a", "b", "a", "b"]).positions.tolist() == [1, 3, 0, 2, 4]


def test_large_and_small_token_ids_compare_as_numbers() -> None:
    tokens = PackedTokens.pack([[2**31 - 1], [0], [256], [255], [65536]])
    assert lexicographic_order(tokens, range(5)).positions.tolist() == [1, 3, 2, 4, 0]


def test_only_the_positions_asked_for_are_ordered() -> None:
    order = lexicographic_order(pack(["c", "x", "ab", "x", "aa"]), [0, 2, 4])
    assert order.positions.tolist() == [4, 2, 0]
    assert order.shared.tolist() == [1, 0, 0]


@pytest.mark.parametrize("prompts", [[], [[]], [[], []]])
def test_nothing_to_compare(prompts: list[list[int]]) -> None:
    order = lexicographic_order(PackedTokens.pack(prompts), range(len(prompts)))
    assert order.positions.tolist() == list(range(len(prompts)))


@examples(300)
@given(forests | texts_of_two_letters)
def test_it_is_the_order_of_the_token_sequences(texts: list[str]) -> None:
    order = lexicographic(texts)
    assert order.positions.tolist() == sorted(range(len(texts)), key=lambda row: (texts[row], row))
    assert order.shared.tolist() == shared_with_next(sorted(texts))
    assert order.shared_with_before.tolist() == ([0, *order.shared.tolist()])[: len(texts)]


def test_long_prompts_that_part_late() -> None:
    generator = np.random.default_rng(0)
    start = generator.integers(0, 9, 500).tolist()
    prompts = [start[: generator.integers(1, 500)] + generator.integers(0, 9, 3).tolist() for _ in range(300)]
    order = lexicographic_order(PackedTokens.pack(prompts), range(300))
    assert [prompts[row] for row in order.positions] == sorted(prompts)


@examples(200)
@given(texts_of_two_letters)
def test_it_is_depth_first_at_every_block_size(texts: list[str]) -> None:
    for size in (1, 2, 3, 4, 8):
        check_depth_first(texts, lexicographic(texts), size)


def test_the_longest_expected_output_comes_first_among_rows_with_the_same_blocks() -> None:
    assert visited(["aaaa1", "aaaa2", "aaaa3"], [4, 9, 4]) == ["aaaa2", "aaaa1", "aaaa3"]


def test_a_row_that_ends_on_the_border_comes_first_all_the_same() -> None:
    assert visited(["aaaa", "aaaab"], [1, 9]) == ["aaaa", "aaaab"]


def test_rows_with_other_blocks_do_not_move() -> None:
    assert visited(["aaaa1", "bbbb1"], [1, 9]) == ["aaaa1", "bbbb1"]


def test_rows_between_which_another_chain_lies_do_not_move() -> None:
    assert visited(["aaaab", "aaaabbbbb", "aaaac"], [1, 5, 9]) == ["aaaab", "aaaabbbbb", "aaaac"]


def test_equal_outputs_leave_the_order_itself() -> None:
    order = lexicographic(["aaaa2", "aaaa1"])
    assert visiting_order(order, pack(["aaaa2", "aaaa1"]), [7, 7], SIZE) is order


@examples(300)
@given(forests | texts_of_two_letters, st.data(), st.sampled_from([1, 2, 3, 4, 8]))
def test_a_visiting_order_is_depth_first_and_knows_its_neighbours(
    texts: list[str], data: st.DataObject, size: int
) -> None:
    max_tokens = data.draw(st.lists(st.integers(1, 3), min_size=len(texts), max_size=len(texts)))
    order = visiting_order(lexicographic(texts), pack(texts), max_tokens, size)
    assert sorted(order.positions.tolist()) == list(range(len(texts)))
    check_depth_first(texts, order, size)
    rows = [texts[row] for row in order.positions]
    assert order.shared.tolist() == shared_with_next(rows)
    for visit_index in range(len(rows) - 1):
        a, b = rows[visit_index], rows[visit_index + 1]
        chain = len(a) // size * size
        if common(a, b) >= chain == len(b) // size * size and (len(a) > chain) == (len(b) > chain):
            assert max_tokens[order.positions[visit_index]] >= max_tokens[order.positions[visit_index + 1]]


def seen(texts: list[str], visited: list[int]) -> list[int]:
    order = lexicographic_order(pack(texts), sorted(visited))
    lengths: list[int] = seen_lengths(order, np.array(visited, np.int64)).tolist()
    return lengths


def test_the_best_of_all_earlier_rows_counts() -> None:
    assert seen(["abcd", "x", "abce", "ab", "abcd"], [0, 1, 2, 3, 4]) == [0, 0, 3, 2, 4]


def test_rows_that_are_not_visited_do_not_count() -> None:
    assert seen(["abcd", "x", "abce"], [1, 2]) == [0, 0]


def test_nothing_visited_was_seen() -> None:
    assert seen([], []) == []


@examples(300)
@given(forests.flatmap(lambda texts: st.permutations(range(len(texts))).map(lambda rows: (texts, rows))))
def test_what_was_seen_is_the_maximum_over_earlier_rows(case: tuple[list[str], list[int]]) -> None:
    texts, visited = case
    expected = [
        max((common(texts[row], texts[earlier]) for earlier in visited[:visit_index]), default=0)
        for visit_index, row in enumerate(visited)
    ]
    assert seen(texts, visited) == expected
