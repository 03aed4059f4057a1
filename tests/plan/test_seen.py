"""What a row has in common with all rows visited before it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.plan.order import lexicographic_order, seen_lengths
from tests.plan.texts import common, forests, pack


def seen(texts: list[str], visited: list[int]) -> list[int]:
    order = lexicographic_order(pack(texts), sorted(visited))
    lengths: list[int] = seen_lengths(order, np.array(visited, np.int64)).tolist()
    return lengths


def test_the_best_of_all_earlier_rows_counts() -> None:
    assert seen(["abcd", "x", "abce", "ab", "abcd"], [0, 1, 2, 3, 4]) == [0, 0, 3, 2, 4]


def test_rows_that_are_not_visited_do_not_count() -> None:
    assert seen(["abcd", "x", "abce"], [1, 2]) == [0, 0]


def test_nothing_visited() -> None:
    assert seen([], []) == []


@settings(max_examples=300, deadline=None)
@given(forests.flatmap(lambda texts: st.permutations(range(len(texts))).map(lambda rows: (texts, rows))))
def test_it_is_the_maximum_over_earlier_rows(case: tuple[list[str], list[int]]) -> None:
    texts, visited = case
    expected = [
        max((common(texts[row], texts[earlier]) for earlier in visited[:visit_index]), default=0)
        for visit_index, row in enumerate(visited)
    ]
    assert seen(texts, visited) == expected
