"""A few cases of a product in which every two values of two factors still meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

Case = tuple[int, ...]  # an index into each factor


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return cases of the product of `factors` that hold every pair of it: always the same ones, chosen greedily."""
    cases = list(product(*(range(len(factor)) for factor in factors)))
    missing = set[tuple[Any, ...]]().union(*map(_pairs, cases))
    chosen: list[Case] = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(missing & _pairs(case))))
        missing -= _pairs(chosen[-1])
    return [tuple(factor[index] for factor, index in zip(factors, case, strict=True)) for case in chosen]


def _pairs(case: Case) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(case), 2))
