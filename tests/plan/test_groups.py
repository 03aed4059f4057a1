"""Prefix groups of a few rows, by hand."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.groups import PrefixGroup, prefix_groups


def test_no_row_and_no_sharing_give_no_group() -> None:
    assert prefix_groups([]) == []
    assert prefix_groups([0, 0]) == []


def test_two_groups() -> None:
    assert prefix_groups([5, 5, 0, 3]) == [PrefixGroup(0, 3, 5), PrefixGroup(3, 5, 3)]


def test_a_template_that_all_rows_share_does_not_swallow_the_groups() -> None:
    # Every row begins with the same block; within, rows 0-2 share 9 blocks and rows 3-5 share 8.
    assert prefix_groups([9, 9, 1, 8, 8]) == [PrefixGroup(0, 3, 9), PrefixGroup(3, 6, 8)]


def test_an_ancestor_with_more_rows_times_blocks_wins() -> None:
    assert prefix_groups([10, 9, 9, 10]) == [PrefixGroup(0, 5, 9)]


def test_a_deeper_node_within_many_shallow_rows_wins() -> None:
    assert prefix_groups([2, 20, 2]) == [PrefixGroup(1, 3, 20)]


@given(st.lists(st.integers(0, 4), max_size=30))
def test_groups_are_disjoint_and_share_what_they_say(shared: list[int]) -> None:
    groups = prefix_groups(shared)
    for group in groups:
        assert group.num_blocks == min(shared[group.start : group.stop - 1]) > 0
    assert all(a.stop <= b.start for a, b in pairwise(groups))
