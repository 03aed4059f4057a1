"""n samples of a row give, token by token in float32, what n runs of one sample with the same keys give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.sampling_params import SamplingParams
from tests.engine.harness import PROMPTS, make_engine, make_requests
from tests.pairwise import pairwise
from tests.tiny_models import context_model

N = 8
ROWS = [PROMPTS[row] for row in (2, 4, 6, 8)]  # 16 tokens, 33, and two that share their first 40
SAMPLED = SamplingParams(temperature=0.8, top_k=40)


def sampled_requests(block_size: int) -> list[list[Request]]:
    """All samples of every row."""
    return [[sample_of(request, number) for number in range(N)] for request in make_requests(ROWS, block_size)]


def sample_of(request: Request, number: int) -> Request:
    return replace(request, params=SAMPLED, max_tokens=5, sample_index=number, output_token_ids=[], block_table=[])


def run(engine: Engine, requests: Sequence[Request]) -> dict[tuple[int, int], list[int]]:
    outputs: dict[tuple[int, int], list[int]] = {}
    for finished in engine.run(requests):
        outputs |= {(request.row_index, request.sample_index): request.output_token_ids for request in finished}
        engine.scheduler.check_integrity()
    assert engine.scheduler.cache.pool.num_used == 0
    return outputs


@cache
def one_by_one() -> dict[tuple[int, int], list[int]]:
    """Every sample as a row of its own, alone and cold."""
    engine = make_engine(context_model(), prefix_cache=False, max_num_seqs=1)
    return run(engine, [sample for row in sampled_requests(16) for sample in row])


def together(backend: str = "cpu", **settings: int) -> tuple[Engine, dict[tuple[int, int], list[int]]]:
    engine = make_engine(context_model(), backend, **settings)
    rows = sampled_requests(settings.get("block_size", 16))
    for first, *later in rows:
        first.later_samples = later
    return engine, run(engine, [row[0] for row in rows])


def test_samples_differ() -> None:
    assert len({tuple(tokens) for tokens in one_by_one().values()}) > 0.9 * len(one_by_one())


@pytest.mark.parametrize(
    ("block_size", "prefix_cache", "max_num_seqs"), pairwise([8, 16, 32], [True, False], [1, 3, 8])
)
def test_equals_separate_runs(block_size: int, prefix_cache: bool, max_num_seqs: int) -> None:
    _, outputs = together(block_size=block_size, prefix_cache=prefix_cache, max_num_seqs=max_num_seqs)
    assert outputs == one_by_one()


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_preemption_of_a_sample_is_invisible(block_size: int, prefix_cache: bool) -> None:
    engine, outputs = together(
        block_size=block_size, prefix_cache=prefix_cache, num_blocks=80 // block_size, expected_tokens=1
    )
    assert outputs == one_by_one()
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("num_blocks", [200, 13])
def test_late_results_equal_separate_runs(num_blocks: int) -> None:
    assert together(lag=1, num_blocks=num_blocks, expected_tokens=1)[1] == one_by_one()


def test_reference_backend_equals_separate_runs() -> None:
    assert together("reference")[1] == one_by_one()
