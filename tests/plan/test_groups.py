"""Prefix groups of a few rows, by hand and against the plain greedy choice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.groups import LargeGroup, PrefixGroup, Spread, prefix_groups, summarise_groups
from tests.examples import examples


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


def greedy_groups(shared_blocks: Sequence[int]) -> list[PrefixGroup]:
    """The definition: of all candidates the largest (rows - 1) * blocks that overlaps with none chosen before."""
    taken = [False] * (len(shared_blocks) + 1)
    groups: list[PrefixGroup] = []
    for group in sorted(candidates(shared_blocks), key=lambda g: (-(g.stop - g.start - 1) * g.num_blocks, g.start)):
        if not any(taken[group.start : group.stop]):
            taken[group.start : group.stop] = [True] * (group.stop - group.start)
            groups.append(group)
    return sorted(groups)


def candidates(shared_blocks: Sequence[int]) -> list[PrefixGroup]:
    """Every branching node of the prefix tree: the maximal runs that share a given number of blocks, shortest first."""
    runs = [
        PrefixGroup(start, stop, min(shared_blocks[start : stop - 1]))
        for start in range(len(shared_blocks))
        for stop in range(start + 2, len(shared_blocks) + 2)
    ]
    padded = [0, *shared_blocks, 0]
    maximal = [run for run in runs if padded[run.start] < run.num_blocks > padded[run.stop]]
    return sorted(maximal, key=lambda run: run.stop - run.start)


@examples(400)
@given(st.integers(1, 12).flatmap(lambda most: st.lists(st.integers(0, most), max_size=25)))
def test_one_walk_chooses_what_the_definition_chooses(shared: list[int]) -> None:
    assert prefix_groups(shared) == greedy_groups(shared)


def test_a_summary_counts_rows_and_prefix_tokens() -> None:
    order = np.array([40, 41, 42, 43, 44, 45])
    summary = summarise_groups([PrefixGroup(0, 2, 5), PrefixGroup(3, 6, 2)], order, block_size=4)
    assert (summary.num_groups, summary.num_rows) == (2, 5)
    assert summary.rows == Spread(min=2, median=3, max=3)
    assert summary.prefix_tokens == Spread(min=8, median=20, max=20)
    assert summary.largest == [LargeGroup(43, 3, 8), LargeGroup(40, 2, 20)]


def test_a_summary_lists_only_the_largest() -> None:
    groups = [PrefixGroup(10 * n, 10 * n + 2 + n, 1) for n in range(4)]
    summary = summarise_groups(groups, np.arange(40), block_size=4, num_largest=2)
    assert [group.first_row for group in summary.largest] == [30, 20]


def test_a_summary_of_no_group() -> None:
    assert summarise_groups([], np.arange(3), block_size=4).rows == Spread(0, 0, 0)
