"""Log-probabilities by hand, on a vocabulary of 4."""

from __future__ import annotations

import math

import pytest
import torch

from batchgen.engine.sampler import gather_logprobs, raw_logprobs

PROBS = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.15, 0.05]])
NONE = torch.empty(0, dtype=torch.int64)


def test_chosen_rank_and_best() -> None:
    first, second = gather_logprobs(raw_logprobs(PROBS.log() + 5.0, NONE), torch.tensor([2, 0]), [2, 0]).read()
    assert (first.token_id, first.rank, [token for token, _ in first.top]) == (2, 3, [1, 3])
    assert first.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [value for _, value in first.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)
    assert (second.token_id, second.rank, second.top) == (0, 1, ())


def test_more_than_the_vocabulary_is_all_of_it() -> None:
    (found,) = gather_logprobs(raw_logprobs(PROBS[:1].log(), NONE), torch.tensor([1]), [10]).read()
    assert [token for token, _ in found.top] == [1, 3, 2, 0]


def test_unused_ids_count_in_the_sum_and_are_not_shown() -> None:
    (found,) = gather_logprobs(raw_logprobs(PROBS[:1].log(), torch.tensor([1])), torch.tensor([3]), [2]).read()
    assert found.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert (found.rank, [token for token, _ in found.top]) == (1, [3, 2])
