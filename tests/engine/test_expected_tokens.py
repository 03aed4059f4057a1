"""The output length that admission expects."""

from __future__ import annotations

from batchgen.engine.admission import ExpectedTokens


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
