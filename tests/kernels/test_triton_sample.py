"""The sampling kernel in Triton's interpreter against the sampler's rule written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchgen.engine.philox import uniform
from batchgen_kernels.triton.sample import sample

ROWS = 6
KEYS = np.array([0, 1, 2**32, 2**63 + 5, 2**64 - 1, 0x123456789ABCDEF0], np.uint64)
POSITIONS = np.array([0, 1, 2, 100, 2**20, 2**31 - 1], np.uint64)
SAMPLES = np.array([0, 0, 1, 7, 1023, 2], np.uint64)
DRAWS = uniform(KEYS, POSITIONS, SAMPLES)


def draw(logits: torch.Tensor, temperatures: list[float], least: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return sample(
        logits,
        torch.tensor(temperatures),
        least,
        torch.from_numpy(KEYS.view(np.int64)),
        torch.from_numpy(POSITIONS.astype(np.int32)),
        torch.from_numpy(SAMPLES.astype(np.int32)),
    )


def expected(logits: torch.Tensor, temperature: float, least: float, share: float) -> int:
    exact = logits.double().numpy()
    weights = np.where(exact >= least, np.exp((exact - exact.max()) / temperature), 0)
    cumulative = weights.cumsum()
    return int(np.searchsorted(cumulative, share * cumulative[-1], side="right"))


def test_draws_are_the_sampler_s_bit_for_bit() -> None:
    _, draws = draw(torch.zeros(ROWS, 5), [1.0] * ROWS, torch.full((ROWS,), -torch.inf))
    assert draws.tolist() == DRAWS.tolist()


@pytest.mark.parametrize("vocab", [1, 37, 2048, 5000])
def test_tokens_are_those_of_the_inverse_cdf(vocab: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(ROWS, vocab) * 3
    temperatures = [0.3, 0.7, 1.0, 1.5, 1e-5, 100.0]
    least = logits.topk(min(vocab, 20)).values[:, -1].clone()
    least[:2] = -torch.inf
    tokens, _ = draw(logits, temperatures, least)
    assert tokens.tolist() == [
        expected(logits[row], temperatures[row], float(least[row]), DRAWS[row]) for row in range(ROWS)
    ]


def test_temperature_0_takes_the_first_of_the_best() -> None:
    logits = torch.zeros(ROWS, 3000)
    logits[:, [2100, 2500]] = 2.0
    tokens, _ = draw(logits, [0.0] * ROWS, torch.full((ROWS,), torch.inf))
    assert tokens.tolist() == [2100] * ROWS


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = torch.full((ROWS, 2500), -torch.inf)
    logits[:, 2200] = 1.0
    tokens, _ = draw(logits, [1.0] * ROWS, torch.full((ROWS,), -torch.inf))
    assert tokens.tolist() == [2200] * ROWS
