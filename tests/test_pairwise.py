"""The cases that stand for a product hold every pair of it."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from tests.pairwise import pairwise

FACTORS: list[list[Any]] = [["a", "b", "c", "d"], [8, 16, 32], [True, False], [1, 8]]


def pairs(cases: Any) -> set[Any]:
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


def test_every_pair_of_values_occurs_in_a_fraction_of_the_cases() -> None:
    cases = pairwise(*FACTORS)
    assert pairs(cases) == pairs(product(*FACTORS))
    assert len(cases) == 12  # of 48; the two longest factors alone have 12 pairs
