"""Every prompt token has exactly one origin. Blocks have 4 tokens."""

from __future__ import annotations

import pytest

from batchgen.stats.prompt_tokens import PromptTokens, origin_of_prompt


@pytest.mark.parametrize(
    ("num_tokens", "num_matched", "num_seen", "expected"),
    [
        (10, 0, 0, PromptTokens(first=8, tail=2)),
        (10, 8, 9, PromptTokens(hit=8, tail=2)),
        (10, 4, 4, PromptTokens(hit=4, first=4, tail=2)),
        (8, 4, 8, PromptTokens(hit=4, last=4)),  # an equal prompt was cached
        (8, 4, 7, PromptTokens(hit=4, first=4)),
        (3, 0, 3, PromptTokens(tail=3)),
        (12, 4, 12, PromptTokens(hit=4, last=4, order=4)),
    ],
)
def test_origin(num_tokens: int, num_matched: int, num_seen: int, expected: PromptTokens) -> None:
    origin = origin_of_prompt(
        num_tokens, 4, num_matched=num_matched, num_copied=0, num_seen=num_seen, has_evicted=False
    )
    assert origin == expected
    assert origin.total == num_tokens


def test_a_seen_block_that_is_missing_counts_as_evicted_after_an_eviction() -> None:
    origin = origin_of_prompt(10, 4, num_matched=0, num_copied=0, num_seen=8, has_evicted=True)
    assert origin == PromptTokens(evicted=8, tail=2)


def test_sum_and_misses() -> None:
    both = PromptTokens(hit=1, first=2) + PromptTokens(first=3, order=4)
    assert both == PromptTokens(hit=1, first=5, order=4)
    assert both.misses == {"first": 5, "tail": 0, "last": 0, "evicted": 0, "order": 4, "scored": 0}


@pytest.mark.parametrize(
    ("num_tokens", "num_seen", "expected"),
    [
        (10, 0, PromptTokens(copied=3, first=5, tail=2)),
        (8, 8, PromptTokens(copied=3, order=1, last=4)),
        (4, 4, PromptTokens(copied=3, last=1)),
    ],
)
def test_copied_tokens_replace_the_first_misses_of_the_prompt(
    num_tokens: int, num_seen: int, expected: PromptTokens
) -> None:
    origin = origin_of_prompt(num_tokens, 4, num_matched=0, num_copied=3, num_seen=num_seen, has_evicted=False)
    assert origin == expected
