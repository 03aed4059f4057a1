"""The sampling kernel in Triton's interpreter against the sampler's rule written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchgen_kernels.triton.sample import sample

ROWS = 6
DRAWS = [0.0, 0.13, 0.5, 0.77, 0.999, 1 - 2**-53]


def draw(logits: torch.Tensor, temperatures: list[float], least: torch.Tensor) -> list[int]:
    tokens: list[int] = sample(
        logits, torch.tensor(temperatures), least, torch.tensor(DRAWS, dtype=torch.float64)
    ).tolist()
    return tokens


def expected(logits: torch.Tensor, temperature: float, least: float, share: float) -> int:
    exact = logits.double().numpy()
    weights = np.where(exact >= least, np.exp((exact - exact.max()) / temperature), 0)
    cumulative = weights.cumsum()
    return int(np.searchsorted(cumulative, share * cumulative[-1], side="right"))


@pytest.mark.parametrize("vocab", [1, 37, 2048, 5000])
def test_tokens_are_those_of_the_inverse_cdf(vocab: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(ROWS, vocab) * 3
    temperatures = [0.3, 0.7, 1.0, 1.5, 1e-5, 100.0]
    least = logits.topk(min(vocab, 20)).values[:, -1].clone()
    least[:2] = -torch.inf
    tokens = draw(logits, temperatures, least)
    assert tokens == [expected(logits[row], temperatures[row], float(least[row]), DRAWS[row]) for row in range(ROWS)]


def test_temperature_0_takes_the_first_of_the_best() -> None:
    logits = torch.zeros(ROWS, 3000)
    logits[:, [2100, 2500]] = 2.0
    tokens = draw(logits, [0.0] * ROWS, torch.full((ROWS,), torch.inf))
    assert tokens == [2100] * ROWS


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = torch.full((ROWS, 2500), -torch.inf)
    logits[:, 2200] = 1.0
    tokens = draw(logits, [1.0] * ROWS, torch.full((ROWS,), -torch.inf))
    assert tokens == [2200] * ROWS
