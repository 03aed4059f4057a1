"""Figures as text."""

from __future__ import annotations

import pytest

from batchgen.stats.format import count, duration, percent, rate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (68.2, "68 s"),
        (303.0, "5 min 3 s"),
        (3599.6, "1 h 0 min"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_and_shares() -> None:
    assert (count(1, "row"), count(2000, "row"), count(0, "row")) == ("1 row", "2,000 rows", "0 rows")
    assert (percent(0.5), rate(1234.5)) == ("50.0 %", "1,234 tokens/s")


def test_no_figure_is_a_dash() -> None:
    assert (percent(None), rate(None)) == ("-", "-")
