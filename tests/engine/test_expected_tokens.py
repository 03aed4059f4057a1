"""The output length that admission reserves."""

from __future__ import annotations

from batchgen.engine.expected_tokens import ExpectedTokens


def test_a_first_guess_until_enough_rows_have_ended() -> None:
    expected = ExpectedTokens()
    for _ in range(31):
        expected.observe(10)
    assert expected.value == 256
    expected.observe(10)
    assert expected.value == 10


def test_it_is_a_high_quantile() -> None:
    expected = ExpectedTokens()
    for length in range(1, 321):  # 320 rows of 1 to 320 tokens
        expected.observe(length)
    assert expected.value == 304  # 95 % of 320


def test_a_fixed_value_stays() -> None:
    expected = ExpectedTokens(7)
    for _ in range(100):
        expected.observe(500)
    assert expected.value == 7


def test_rows_without_output_still_reserve_a_token() -> None:
    expected = ExpectedTokens()
    for _ in range(64):
        expected.observe(0)
    assert expected.value == 1
