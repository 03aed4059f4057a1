"""Where a system prompt that looks shared is not; 100 tokens of it behind a short variable part."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.first_difference import GAP, RUN, SHIFT, FirstDifference, first_difference
from batchgen.plan.order import lexicographic_order
from batchgen.plan.token_store import PackedTokens

SYSTEM = list(range(1000, 1100))
OTHER_SYSTEM = list(range(2000, 2300))


def find(
    prompts: Sequence[Sequence[int]], labels: Sequence[int] | None = None, num_pairs: int = 1000
) -> FirstDifference | None:
    tokens = PackedTokens.pack(prompts)
    return first_difference(tokens, lexicographic_order(tokens, range(len(prompts))), labels, num_pairs=num_pairs)


def test_a_number_in_front_of_a_system_prompt() -> None:
    found = find([[1, 7, *SYSTEM, 50], [1, 8, *SYSTEM, 60], [1, 9, *SYSTEM, 70]])
    assert found == FirstDifference(token=1, num_compared=2, num_pairs=2, lost_tokens=200, example=(0, 1))


def test_numbers_of_different_lengths() -> None:
    found = find([[1, 7, *SYSTEM, 50], [1, 8, 8, 8, *SYSTEM, 60]])
    assert found is not None
    assert (found.token, found.lost_tokens) == (1, 100)


def test_a_shared_system_prompt_is_no_break() -> None:
    assert find([[*SYSTEM, 50, 51], [*SYSTEM, 60, 61]]) is None


def test_different_system_prompts_are_no_break() -> None:
    assert find([SYSTEM, OTHER_SYSTEM]) is None


def test_the_break_that_costs_most_is_told() -> None:
    early = [[1, 7, *SYSTEM], [1, 8, *SYSTEM]]
    late = [[2, 2, 2, 7, *OTHER_SYSTEM], [2, 2, 2, 8, *OTHER_SYSTEM]]
    found = find(early + late)
    assert found is not None
    assert (found.token, found.lost_tokens, found.example) == (3, 300, (2, 3))


def test_labels_bring_rows_with_the_same_system_prompt_together() -> None:
    # The number in front mixes two system prompts, so that no two neighbours have the same one.
    prompts = [[number, *(OTHER_SYSTEM if number % 2 else SYSTEM)] for number in range(8)]
    assert find(prompts) is None
    found = find(prompts, labels=[number % 2 for number in range(8)])
    assert found is not None
    assert (found.token, found.num_pairs, found.lost_tokens) == (0, 6, 3 * 100 + 3 * 300)


def test_a_bounded_number_of_pairs_is_compared() -> None:
    found = find([[number, *SYSTEM] for number in range(50)], num_pairs=10)
    assert found is not None
    assert (found.num_compared, found.lost_tokens) == (10, 1000)


@given(st.integers(0, 2 * GAP), st.integers(-2 * SHIFT, 2 * SHIFT), st.integers(RUN - 2, RUN + 2))
def test_it_sees_as_far_as_it_says(gap: int, shift: int, run: int) -> None:
    one, other = max(gap - max(shift, 0), 0), max(gap + min(shift, 0), 0)  # tokens of the variable part
    prompts = [[1] + [7] * one + SYSTEM[:run], [1] + [8] * other + SYSTEM[:run]]
    is_seen = min(one, other) <= GAP and abs(one - other) <= SHIFT and run >= RUN and max(one, other) > 0
    assert (find(prompts) is not None) == is_seen


def test_too_few_rows_to_compare() -> None:
    assert find([]) is None
    assert find([SYSTEM]) is None
    assert find([SYSTEM, SYSTEM], labels=[1, 2]) is None
