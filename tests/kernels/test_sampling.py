"""Sampling: known tokens of small rows, and the CPU kernel equals the reference on unusual rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from batchgen_kernels import CpuBackend, ReferenceBackend, SamplingBackend, SamplingRows
from batchgen_kernels.cpu.sampling import sample
from batchgen_kernels.philox import uniform
from tests.pairwise import pairwise

LOGITS = torch.tensor([0.30, 0.05, 0.20, 0.02, 0.25, 0.08, 0.06, 0.04]).log()
BACKENDS = [ReferenceBackend(), CpuBackend()]


def sampling_rows(
    num_rows: int, temperature: float = 1.0, *, top_p: float = 1.0, min_p: float = 0.0, top_k: int = 0
) -> SamplingRows:
    """Return rows that differ only in their draws."""
    keys = torch.arange(num_rows) * 0x1234567 - 5
    temperatures, top_ps, min_ps = (torch.full((num_rows,), value) for value in (temperature, top_p, min_p))
    positions, samples = torch.arange(num_rows) % 7, torch.arange(num_rows) % 3
    is_filtered = top_k > 0 or top_p < 1
    top_ks = torch.full((num_rows,), top_k)
    return SamplingRows(temperatures, top_ps, min_ps, top_ks, keys, positions, samples, is_filtered)


def row_of(rows: SamplingRows, row: int) -> SamplingRows:
    names = ("temperatures", "top_p", "min_p", "top_k", "keys", "positions", "samples")
    return replace(rows, **{name: getattr(rows, name)[row : row + 1] for name in names})


def assert_as_reference(logits: Tensor, rows: SamplingRows | None) -> None:
    expected, found = ReferenceBackend().sample(logits, rows), CpuBackend().sample(logits, rows)
    assert found.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(found.best, expected.best, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 4, 2}),
        ({"top_k": 100}, set(range(8))),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 0.5}, {0, 4}),
        ({"top_p": 0.56}, {0, 4, 2}),
        ({"min_p": 0.5}, {0, 4, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.7}, {0, 4}),  # 0.55 is 73 % of the weight 0.75 of the three
        ({"top_k": 4, "min_p": 0.8}, {0, 4}),
    ],
    ids=str,
)
def test_filters_keep_the_right_tokens(backend: SamplingBackend, filters: dict[str, float], kept: set[int]) -> None:
    rows = sampling_rows(600, **filters)  # type: ignore[arg-type]
    assert set(backend.sample(LOGITS.expand(600, -1), rows).tokens.tolist()) == kept


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.4}, {"top_k": 2, "top_p": 0.99}], ids=str)
def test_tokens_as_likely_as_the_last_kept_one_are_kept(backend: SamplingBackend, filters: dict[str, float]) -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 1.0, -1.0, 1.0]).expand(600, -1)
    tokens = backend.sample(logits, sampling_rows(600, **filters)).tokens  # type: ignore[arg-type]
    assert set(tokens.tolist()) == ({1} if filters == {"top_p": 0.4} else {1, 2, 3, 5})


VOCABS = [1, 2, 15, 255, 256, 257, 5003]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FILTERS: list[dict[str, float]] = [
    {}, {"top_k": 1}, {"top_k": 40}, {"top_k": 900}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.5}, {"min_p": 0.1}
]  # fmt: skip


@pytest.mark.parametrize(
    ("vocab", "dtype", "filters", "temperature"), pairwise(VOCABS, DTYPES, FILTERS, [0.2, 1.0, 30.0]), ids=str
)
def test_kernel_draws_as_the_reference(
    vocab: int, dtype: torch.dtype, filters: dict[str, float], temperature: float
) -> None:
    """bfloat16 logits have many ties."""
    torch.manual_seed(vocab)
    logits = (torch.randn(24, vocab) * 2).to(dtype)
    logits[::3, vocab // 2 :: 2] = -torch.inf
    assert_as_reference(logits, sampling_rows(24, temperature, **filters))  # type: ignore[arg-type]


def test_the_kernel_samples_from_equal_logits_like_the_reference() -> None:
    for filters in ({"top_p": 0.9}, {"top_k": 700}, {"top_k": 700, "top_p": 0.3}):
        assert_as_reference(torch.zeros(8, 1000), sampling_rows(8, **filters))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [None, sampling_rows(6), sampling_rows(6, top_k=2, top_p=0.5)])
def test_rows_whose_best_logit_is_not_finite_get_token_0_and_that_logit(
    backend: SamplingBackend, rows: SamplingRows | None
) -> None:
    logits = torch.full((6, 300), -torch.inf)
    logits[0, 7], logits[1, 7], logits[2, 7], logits[3, 7] = torch.nan, -torch.tensor(torch.nan), torch.inf, 1.0
    logits[4] = torch.nan
    sampled = backend.sample(logits, rows)
    assert sampled.tokens.tolist() == [0, 0, 0, 7, 0, 0]
    nan, inf = torch.nan, torch.inf
    torch.testing.assert_close(sampled.best, torch.tensor([nan, nan, inf, 1.0, nan, -inf]), equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_temperature_the_first_of_the_best_tokens_is_sampled(backend: SamplingBackend) -> None:
    logits = torch.zeros(4, 700)
    logits[0, [3, 600]] = 2.0
    logits[1, 5:] = -0.0  # equal to 0
    logits[2] = -7.0
    logits[3, 699] = 1.0
    greedy = replace(sampling_rows(4), temperatures=torch.zeros(4))
    for rows in (None, greedy):
        assert backend.sample(logits, rows).tokens.tolist() == [3, 0, 0, 699]


def test_greedy_and_random_rows_do_not_affect_each_other() -> None:
    torch.manual_seed(0)
    logits, rows = torch.randn(10, 900), sampling_rows(10, top_p=0.8)
    rows.temperatures[::2] = 0
    tokens = CpuBackend().sample(logits, rows).tokens
    assert tokens[::2].tolist() == logits.argmax(-1)[::2].tolist()
    assert_as_reference(logits, rows)


def test_a_token_depends_on_its_row_alone() -> None:
    """Not on the batch, the row's index in it, or the number of threads."""
    torch.manual_seed(1)
    logits, rows = torch.randn(7, 3001), sampling_rows(7, 0.9, top_k=500, top_p=0.95)
    together = sample(logits, rows, 1).tokens.tolist()
    assert sample(logits, rows, 3).tokens.tolist() == together
    alone = [sample(logits[row : row + 1], row_of(rows, row), 2).tokens.item() for row in range(7)]
    assert alone == together


def test_a_draw_samples_the_first_token_whose_cumulative_weight_exceeds_it() -> None:
    """Compares with float64 sums over a whole row, with a separate row for every draw."""
    torch.manual_seed(2)
    logits, rows = torch.randn(1, 2000).expand(500, -1), sampling_rows(500, 1.3)
    weights = ((logits[0] - logits[0].max()) / 1.3).exp()
    cumulative = weights.double().cumsum(-1)
    tokens = CpuBackend().sample(logits, rows).tokens
    columns = (column.numpy().view("uint64") for column in (rows.keys, rows.positions, rows.samples))
    targets = torch.from_numpy(uniform(*columns)) * cumulative[-1]
    assert tokens.tolist() == torch.searchsorted(cumulative, targets, right=True).tolist()
