"""The peak of blocks that running rows are expected to hold, and the output length that admission expects."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.admission import ExpectedTokens, Reservation
from batchgen.engine.block_pool import BlockPool
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Request
from batchgen.engine.request_blocks import RequestBlocks
from batchgen.sampling_params import SamplingParams

SIZE = 4


def running_rows(rows: list[tuple[int, int]], shared: int = 0) -> tuple[RequestBlocks, list[Request]]:
    """Rows of (prompt tokens, max_tokens), all computed; neighbours share their first `shared` tokens."""
    blocks = RequestBlocks(PrefixCache(BlockPool(100), SIZE))
    requests = []
    for number, (length, max_tokens) in enumerate(rows):
        tokens = np.array([*range(shared), *[1000 + number] * (length - shared)], np.int32)
        requests.append(Request(number, tokens, SamplingParams(), number, max_tokens, shared_with_next=shared))
        blocks.take(requests[-1], blocks.find(requests[-1]))
        blocks.extend(requests[-1], length)
    return blocks, requests


def peak(blocks: RequestBlocks, requests: list[Request]) -> int:
    reservation = Reservation(blocks, ExpectedTokens(1000))  # so that max_tokens decides
    for request in requests:
        reservation.add(request)
    return reservation.peak()


def test_one_row_comes_to_what_it_stores_at_its_end() -> None:
    assert peak(*running_rows([(6, 7)])) == 3  # 6 + 7 - 1 tokens
    assert peak(*running_rows([(6, 8)])) == 4


def test_a_row_that_ends_first_gives_its_blocks_to_the_other() -> None:
    # when the short one ends: 2 + 2; when the long one does: 6
    assert peak(*running_rows([(5, 2), (5, 20)])) == 6
    # 10 + 3 tokens and 5 + 3, then only 5 + 6
    assert peak(*running_rows([(10, 4), (5, 7)])) == 4 + 2


def test_shared_blocks_count_once_and_to_the_end() -> None:
    # 2 shared blocks; the short row has 1 of its own, the long one comes to 5
    assert peak(*running_rows([(9, 2), (9, 20)], shared=8)) == 2 + 5


def test_a_row_to_come_counts_what_it_does_not_find() -> None:
    blocks, [first] = running_rows([(9, 2)], shared=8)
    second = Request(1, np.array([*range(8), 7], np.int32), SamplingParams(), 1, max_tokens=2, shared_with_next=0)
    reservation = Reservation(blocks, ExpectedTokens(1000))
    reservation.add(first)
    reservation.add(second, blocks.find(second))
    assert reservation.peak() == 2 + 1 + 1


@given(rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=6))
def test_the_peak_is_the_most_of_all_moments(rows: list[tuple[int, int]]) -> None:
    """Rows that share nothing, token by token."""
    moments = range(1, 31)
    held = [sum(-(-(length + now - 1) // SIZE) for length, left in rows if left >= now) for now in moments]
    assert peak(*running_rows(rows)) == max(held)


def learnt(lengths: list[int]) -> ExpectedTokens:
    expected = ExpectedTokens()
    for length in lengths:
        expected.observe(length)
    return expected


def test_a_first_guess_until_enough_rows_have_ended() -> None:
    expected = learnt([10] * 31)
    assert expected.left([0, 200, 300]).tolist() == [256, 56, 1]
    expected.observe(10)
    assert expected.value == 10


def test_it_is_the_mean_of_the_rows_that_were_longer() -> None:
    expected = learnt([10, 20, 30, 100] * 8)
    # all: 160 / 4; longer than 10: 150 / 3; longer than 29: 130 / 2; longer than 30: 100
    assert expected.left([0, 10, 29, 30]).tolist() == [40, 40, 36, 70]


def test_a_row_longer_than_all_before_it_is_expected_to_double() -> None:
    assert learnt([10] * 32).left([10, 25]).tolist() == [10, 25]


def test_a_fixed_value_stays() -> None:
    expected = ExpectedTokens(7)
    for _ in range(100):
        expected.observe(500)
    assert expected.left([0, 3, 9]).tolist() == [7, 4, 1]


def test_rows_without_output_still_reserve_a_token() -> None:
    assert learnt([0] * 64).value == 1
