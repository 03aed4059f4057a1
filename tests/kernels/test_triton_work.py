"""A step as work items: queries, tokens and part of each, in sizes that can be checked on paper."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

from batchgen_kernels import AttentionStep, BlockGroup
from batchgen_kernels.triton.work import ONLY_PART, Tiling, Work, decode_capacity, plan_work

# Tiles of 2 decode queries, 4 shared ones and 4 prefill ones; ranges of at least 16 tokens.
TILING = Tiling(
    decode_queries=2,
    shared_queries=4,
    prefill_queries=4,
    min_split=16,
    num_items=1,
    token_bytes=10,
    partial_bytes=1,
    min_saved_bytes=0,
)


def work_of(rows: list[tuple[int, int]], groups: tuple[BlockGroup, ...] = (), tiling: Tiling = TILING) -> Work:
    """Return the work of `rows` (queries, tokens before them) in blocks of 8 tokens."""
    starts = [sum(queries for queries, _ in rows[:row]) for row in range(len(rows) + 1)]
    lens = [queries + before for queries, before in rows]
    empty = torch.empty(0, dtype=torch.int64)
    return plan_work(AttentionStep(empty, empty, starts, lens, groups, 8), tiling)


def fields(items: object) -> list[list[int]]:
    """Return first query, number of queries, table row, low, high and part of each item."""
    return items[:, :6].tolist()  # type: ignore[index, no-any-return]


def test_a_short_row_is_one_item_without_a_partial() -> None:
    work = work_of([(1, 6)])
    assert fields(work.decode) == [[0, 1, 0, 0, 7, ONLY_PART]]
    assert work.merged_tokens.tolist() == []
    assert work.size.partials == 0


def test_prefill_is_cut_into_tiles_that_end_at_their_last_query_longest_first() -> None:
    work = work_of([(6, 10)])
    assert fields(work.prefill) == [[4, 2, 0, 0, 16, ONLY_PART], [0, 4, 0, 0, 14, ONLY_PART]]
    assert work.positions.tolist() == [10, 11, 12, 13, 14, 15]


def test_a_row_longer_than_its_share_is_split() -> None:
    work = work_of([(1, 39), (1, 3)], tiling=TILING._replace(num_items=3))
    assert fields(work.decode) == [
        [0, 1, 0, 0, 16, 0],
        [0, 1, 0, 16, 32, 1],
        [0, 1, 0, 32, 40, 2],
        [1, 1, 1, 0, 4, ONLY_PART],
    ]
    assert work.partial_starts.tolist() == [0, 3, 3]
    assert work.merged_tokens.tolist() == [0]


GROUP = BlockGroup(1, 4, 2)


def test_a_group_reads_its_blocks_once_and_each_row_the_rest() -> None:
    work = work_of([(1, 3), (1, 16), (1, 20), (1, 18)], (GROUP,), TILING._replace(min_saved_bytes=200))
    assert fields(work.shared) == [[1, 3, 1, 0, 16, 0]]
    assert fields(work.decode) == [
        [2, 1, 2, 16, 21, 1],
        [0, 1, 0, 0, 4, ONLY_PART],
        [3, 1, 3, 16, 19, 1],
        [1, 1, 1, 16, 17, 1],
    ]
    assert work.partial_starts.tolist() == [0, 0, 2, 4, 6]
    assert work.merged_tokens.tolist() == [1, 2, 3]


def test_sharing_must_save_more_than_its_partials_and_launches_cost() -> None:
    """Two of three reads of 16 tokens of 10 bytes are saved: 320; 3 queries write and read 2 parts of 1 byte: 12."""
    rows = [(1, 3), (1, 16), (1, 20), (1, 18)]
    for threshold, pays in ((307, True), (308, False), (math.inf, False), (-math.inf, True)):
        assert bool(len(work_of(rows, (GROUP,), TILING._replace(min_saved_bytes=threshold)).shared)) == pays


def test_groups_share_the_cost_of_one_launch() -> None:
    rows = [(1, 16)] * 4
    groups = (BlockGroup(0, 2, 2), BlockGroup(2, 4, 2))
    for threshold, num_shared in ((303, 2), (304, 0)):  # each saves 160 - 8
        assert len(work_of(rows, groups, TILING._replace(min_saved_bytes=threshold)).shared) == num_shared


def test_prefill_rows_of_a_group_read_their_whole_context() -> None:
    work = work_of([(1, 16), (1, 16), (3, 16), (1, 16)], (BlockGroup(0, 4, 2),))
    assert fields(work.prefill) == [[2, 3, 2, 0, 19, ONLY_PART]]
    assert fields(work.shared) == [[0, 2, 0, 0, 16, 0]]  # the row behind the prefill row has no neighbour to share with


@given(
    groups=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=6),
    own=st.integers(0, 60),
    num_items=st.integers(1, 40),
    min_split=st.sampled_from([8, 16, 100]),
)
def test_a_decode_step_of_any_groups_fits_the_capacity_of_its_rows(
    groups: list[tuple[int, int]], own: int, num_items: int, min_split: int
) -> None:
    """All groups of (rows, shared blocks) share."""
    rows = [(1, blocks * 8 + own) for count, blocks in groups for _ in range(count)]
    ends = list(accumulate(count for count, _ in groups))
    shared = [BlockGroup(end - count, end, blocks) for (count, blocks), end in zip(groups, ends, strict=True) if blocks]
    capacity = decode_capacity(len(rows), num_items)
    tiling = TILING._replace(
        num_items=num_items, min_split=min_split, min_saved_bytes=-math.inf, max_parts=capacity.partials
    )
    size = work_of(rows, tuple(shared), tiling).size
    assert all(used <= most for used, most in zip(size, capacity, strict=True))
