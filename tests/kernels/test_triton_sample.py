"""Sampling in Triton's interpreter equals the reference; vocabularies end inside a tile and fill several."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchgen_kernels import SamplingRows, reference
from batchgen_kernels.triton.sample import sample

pytestmark = pytest.mark.slow

ROWS = 8


def rows_of(**columns: Any) -> SamplingRows:
    """Return `ROWS` rows; a column is one value, or one value a row."""
    given = {"temperatures": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0} | columns
    top_k = torch.as_tensor(given.pop("top_k")).expand(ROWS).contiguous()
    shares = {
        name: torch.as_tensor(value, dtype=torch.float32).expand(ROWS).contiguous() for name, value in given.items()
    }
    keys = torch.arange(ROWS) * 7919 - 3
    return SamplingRows(**shares, top_k=top_k, keys=keys, positions=keys + 5, samples=keys % 3, is_filtered=True)


def check(logits: torch.Tensor, rows: SamplingRows) -> None:
    sampled, expected = sample(logits, rows), reference.sample(logits, rows)
    assert sampled.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(sampled.best, expected.best, equal_nan=True)


FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "greedy and hot": {"temperatures": [0.0, 0.3, 0.7, 1.0, 1.5, 1e-5, 100.0, 0.0]},
    "top_k": {"top_k": [1, 2, 5, 0, 36, 37, 38, 10**6]},
    "top_p": {"top_p": [0.0, 1e-6, 0.3, 0.5, 0.9, 0.99, 1.0, 0.7]},
    "min_p": {"min_p": [0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 0.2, 0.05]},
    "all": {"temperatures": 0.8, "top_k": [3, 50, 0, 7, 0, 20, 30, 2], "top_p": 0.8, "min_p": 0.02},
}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [1, 37, 2100])
def test_tokens_equal_those_of_the_reference(vocab: int, filters: str) -> None:
    torch.manual_seed(1)
    check(torch.randn(ROWS, vocab) * 3, rows_of(**FILTERS[filters]))


@pytest.mark.parametrize("filters", FILTERS)
def test_equal_logits_are_kept_together(filters: str) -> None:
    torch.manual_seed(2)
    logits = torch.randint(-2, 3, (ROWS, 61)).float()
    logits[:, ::5] *= -0.0  # 0 and -0 are equal
    check(logits, rows_of(**FILTERS[filters]))


def test_what_filters_keep_does_not_depend_on_the_draw() -> None:
    """The four best of logits 0 to 7 have weights 1, 1/e, 1/e^2 and 1/e^3, of which three reach nine tenths."""
    logits = torch.arange(8.0).expand(ROWS, -1).contiguous()
    seen: set[int] = set()
    for position in range(5):
        rows = rows_of(top_k=4, top_p=0.9)
        rows.positions.fill_(position)
        seen.update(sample(logits, rows).tokens.tolist())
    assert seen == {5, 6, 7}


def test_tokens_without_probability_are_never_sampled() -> None:
    logits = torch.full((ROWS, 2500), -torch.inf)
    logits[:, 2200] = 1.0
    assert sample(logits, rows_of(top_k=3, top_p=0.5)).tokens.tolist() == [2200] * ROWS


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_whose_best_logit_is_not_finite_get_token_0(bad: float) -> None:
    logits = torch.randn(ROWS, 40)
    logits[2] = bad
    logits[3, 7] = bad
    check(logits, rows_of(top_k=5, top_p=0.9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_logits_may_be_views_of_any_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    check((torch.randn(ROWS, 90) * 2).to(dtype)[:, 8:57], rows_of(top_p=0.9))
