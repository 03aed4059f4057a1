"""Sampler: filters checked by hand on 8 tokens, distribution by chi-square, independence of the batch; logprobs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from batchgen.engine.batch import SamplingColumns
from batchgen.engine.request import Failed, Outcome, Request, SampledToken
from batchgen.engine.sampler import Sampler, gather_logprobs, raw_logprobs
from batchgen.models.transfer import to_device
from batchgen.prompts.prompt import rng_key
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import CpuBackend

PROBS = torch.tensor([0.30, 0.05, 0.20, 0.02, 0.25, 0.08, 0.06, 0.04])
NUM_DRAWS = 4000


def request(key: int = 0, **params: Any) -> Request:
    return Request(0, np.array([1], np.int32), SamplingParams(**params), rng_key(0, str(key).encode()), max_tokens=9)


def sampler(*unused: int) -> Sampler:
    return Sampler(torch.tensor(unused, dtype=torch.int64), CpuBackend())


def outcomes_of(logits: torch.Tensor, requests: list[Request], *unused: int) -> list[Outcome]:
    columns = SamplingColumns.from_requests(requests)
    rows = columns.to_rows(*to_device([columns.floats, columns.integers], logits.device))
    return sampler(*unused).sample(logits, requests, rows).outcomes()


def sample(logits: torch.Tensor, requests: list[Request], *unused: int) -> list[int]:
    """The chosen tokens, where no row fails."""
    outcomes = outcomes_of(logits, requests, *unused)
    return [outcome.token_id for outcome in outcomes if isinstance(outcome, SampledToken)]


def frequencies(logits: torch.Tensor, **params: Any) -> torch.Tensor:
    rows = logits.expand(NUM_DRAWS, -1).clone()
    tokens = sample(rows, [request(key, **params) for key in range(NUM_DRAWS)])
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[-1])


def assert_distributed(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Chi-square at p = 0.001, and nothing where the probability is 0."""
    possible = probs > 0
    assert counts[~possible].sum() == 0
    expected = probs[possible] / probs.sum() * NUM_DRAWS
    limits = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 6: 22.46, 7: 24.32}
    degrees = int(possible.sum()) - 1
    if degrees:
        assert ((counts[possible] - expected) ** 2 / expected).sum() < limits[degrees]


def kept(*tokens: int) -> torch.Tensor:
    return torch.where(torch.isin(torch.arange(8), torch.tensor(tokens)), PROBS, 0)


def test_greedy_takes_the_best() -> None:
    assert sample(PROBS.log()[None].clone(), [request()]) == [0]


def test_unused_ids_are_never_chosen() -> None:
    assert sample(PROBS.log()[None].clone(), [request()], 0, 4) == [2]


def test_temperature_one_draws_from_the_model() -> None:
    assert_distributed(frequencies(PROBS.log(), temperature=1.0), PROBS)


def test_temperature_sharpens() -> None:
    assert_distributed(frequencies(PROBS.log(), temperature=0.5), PROBS**2)


def test_tiny_temperature_is_greedy() -> None:
    assert frequencies(PROBS.log(), temperature=1e-5)[0] == NUM_DRAWS


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 1}, kept(0)),
        ({"top_k": 3}, kept(0, 4, 2)),
        ({"top_k": 100}, PROBS),
        ({"top_p": 0.2}, kept(0)),
        ({"top_p": 0.5}, kept(0, 4)),
        ({"top_p": 0.56}, kept(0, 4, 2)),
        ({"min_p": 0.5}, kept(0, 4, 2)),
        ({"min_p": 1.0}, kept(0)),
        ({"top_k": 3, "top_p": 0.7}, kept(0, 4)),  # of the three's 0.75, 0.55 is 73 %
        ({"top_k": 4, "min_p": 0.8}, kept(0, 4)),
    ],
    ids=str,
)
def test_filters(params: dict[str, float], expected: torch.Tensor) -> None:
    assert_distributed(frequencies(PROBS.log(), temperature=1.0, **params), expected)


def test_top_p_on_a_flat_distribution() -> None:
    logits = torch.zeros(2000)
    logits[:1000] = 5.0  # 99.3 % of the mass, in a thousand equal parts
    counts = frequencies(logits, temperature=1.0, top_p=0.9)
    assert counts[1000:].sum() == 0
    assert (counts > 0).sum() > 900


def test_a_filter_of_one_row_leaves_its_neighbours_alone() -> None:
    rows = PROBS.log().expand(NUM_DRAWS, -1).clone()
    requests = [request(key, temperature=1.0, top_k=1 + 7 * (key % 2)) for key in range(NUM_DRAWS)]
    tokens = torch.tensor(sample(rows, requests))
    assert (tokens[0::2] == 0).all()
    assert set(tokens[1::2].tolist()) == set(range(8))


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = torch.randn(6, 50)
    requests = [request(key, temperature=1.0, top_p=0.9) for key in range(6)]
    together = sample(logits.clone(), requests)
    alone = [sample(logits[row : row + 1].clone(), [requests[row]])[0] for row in range(6)]
    assert together == alone


def test_penalties_change_the_distribution() -> None:
    """The completion so far is 0 0 2, the prompt 1: repetition halves log-odds of 0, 1 and 2, the others subtract."""
    logits = PROBS.log() + 5.0  # all above 0, where the repetition penalty divides
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    expected = logits.clone()
    expected[[0, 1, 2]] /= 2.0
    expected[[0, 2]] -= 0.3
    expected[[0, 2]] -= torch.tensor([0.4, 0.2])
    rows = [request(key, temperature=1.0, **penalties) for key in range(NUM_DRAWS)]
    for row in rows:
        row.output_token_ids = [0, 0, 2]
    tokens = torch.tensor(sample(logits.expand(NUM_DRAWS, -1).clone(), rows))
    assert_distributed(torch.bincount(tokens, minlength=8), expected.softmax(-1))


def test_bias_and_bad_words_change_the_distribution() -> None:
    counts = frequencies(PROBS.log(), temperature=1.0, logit_bias=((3, 2.0),), bad_words=((0,), (5, 1)))
    expected = PROBS.clone()
    expected[0] = 0
    expected[3] *= float(np.exp(2.0))
    assert_distributed(counts, expected)


def test_draws_of_different_rows_do_not_depend_on_each_other() -> None:
    """Pairs of rows at eight positions, as a table of 8 x 8: chi-square of independence at p = 0.001, 49 degrees."""
    table = torch.zeros(8, 8)
    for position in range(8):
        rows = [request(key, temperature=1.0) for key in range(2000)]
        for row in rows:
            row.output_token_ids = [0] * position
        tokens = torch.tensor(sample(torch.zeros(2000, 8), rows))
        table += torch.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64).reshape(8, 8)
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 85.35


def test_draws_of_one_row_do_not_depend_on_each_other() -> None:
    rows = [request(key, temperature=1.0) for key in range(4000)]
    first = torch.tensor(sample(torch.zeros(4000, 8), rows))
    for row in rows:
        row.output_token_ids = [0]
    second = torch.tensor(sample(torch.zeros(4000, 8), rows))
    assert abs(float(torch.corrcoef(torch.stack([first, second]).float())[0, 1])) < 0.05


def test_nothing_left_to_choose_fails_the_row_only() -> None:
    for temperature in (0.0, 1.0):
        rows = [request(temperature=temperature, bad_words=tuple((n,) for n in range(8))), request()]
        first, second = outcomes_of(PROBS.log().expand(2, -1).clone(), rows)
        assert isinstance(first, Failed)
        assert first.error.startswith("no token can be sampled")
        assert second == SampledToken(0)


def test_logprobs_are_of_the_models_own_distribution() -> None:
    rows = [request(temperature=0.1, logit_bias=((3, 50.0),), logprobs=1), request(logprobs=0), request()]
    first, second, third = outcomes_of(PROBS.log().expand(3, -1).clone(), rows)
    assert isinstance(first, SampledToken)
    assert first.logprobs is not None
    assert (first.token_id, first.logprobs.rank, first.logprobs.top[0][0]) == (3, 8, 0)
    assert first.logprobs.logprob == pytest.approx(float(np.log(0.02)), abs=1e-5)
    assert isinstance(second, SampledToken)
    assert second.logprobs is not None
    assert (second.logprobs.token_id, second.logprobs.top) == (0, ())
    assert third == SampledToken(0)


def test_rows_with_one_seed_draw_differently() -> None:
    assert len(set(sample(torch.zeros(20, 1000), [request(key, temperature=1.0) for key in range(20)]))) > 15


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_fail_their_row_only(bad: float) -> None:
    logits = PROBS.log().expand(2, -1).clone()
    logits[0, 3] = bad
    first, second = outcomes_of(logits, [request(), request()])
    assert isinstance(first, Failed)
    assert "not finite" in first.error
    assert second == SampledToken(0)


FOUR = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.15, 0.05]])
NONE = torch.empty(0, dtype=torch.int64)


def test_logprobs_have_token_rank_and_best() -> None:
    first, second = gather_logprobs(raw_logprobs(FOUR.log() + 5.0, NONE), torch.tensor([2, 0]), [2, 0]).read()
    assert (first.token_id, first.rank, [token for token, _ in first.top]) == (2, 3, [1, 3])
    assert first.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [value for _, value in first.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)
    assert (second.token_id, second.rank, second.top) == (0, 1, ())


def test_more_logprobs_than_the_vocabulary_are_all_of_it() -> None:
    (found,) = gather_logprobs(raw_logprobs(FOUR[:1].log(), NONE), torch.tensor([1]), [10]).read()
    assert [token for token, _ in found.top] == [1, 3, 2, 0]


def test_unused_ids_count_in_the_sum_of_logprobs_and_are_not_shown() -> None:
    (found,) = gather_logprobs(raw_logprobs(FOUR[:1].log(), torch.tensor([1])), torch.tensor([3]), [2]).read()
    assert found.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert (found.rank, [token for token, _ in found.top]) == (1, [3, 2])
