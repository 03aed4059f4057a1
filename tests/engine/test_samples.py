"""Several samples of a row: they begin from one prompt, and never see what another one wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.request_output import FinishReason
from batchgen.stats.prompt_tokens import PromptTokens
from tests.engine.samples import EndingRunner, SampleRunner, alone, with_samples
from tests.engine.simulated import (
    CheckedEngine,
    RandomJob,
    check_accounts,
    finish,
    make_engine,
    make_requests,
    random_jobs,
)
from tests.examples import examples


def start(n: int, prompt: str, **given: int | bool | None) -> CheckedEngine:
    engine = make_engine(**given)
    engine.runner = SampleRunner(engine.scheduler.cache.block_size)
    [request] = with_samples(make_requests([prompt], [12], engine.scheduler.cache.block_size), n)
    engine.scheduler.add(request)
    return engine


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_eight_samples_of_a_hundred_tokens_hold_7_blocks_and_then_14(prefix_cache: bool) -> None:
    engine = start(8, "a" * 100, block_size=16, max_num_seqs=8, max_batched_tokens=128, prefix_cache=prefix_cache)
    pool = engine.scheduler.cache.pool
    engine.step()
    assert (pool.num_used, len(engine.scheduler.running)) == (6 + 1, 8)
    assert engine.runner.computed == {0: list(range(100))}
    engine.step()
    assert pool.num_used == 6 + 8


def test_every_sample_draws_from_the_logits_of_the_prompts_last_token() -> None:
    engine = start(3, "a" * 10)
    step = engine.scheduler.schedule()
    assert [[request.sample_index for request in chunk.samples] for chunk in step.chunks] == [[0, 1, 2]]


def test_the_last_to_write_keeps_the_half_filled_block() -> None:
    engine = start(3, "a" * 10)
    engine.step()
    [shared] = {request.block_table[-1] for request in engine.scheduler.running}
    step = engine.scheduler.schedule()
    assert [copy.source for copy in step.copies] == [shared, shared]
    assert engine.scheduler.running[-1].block_table[-1] == shared


def test_nothing_is_copied_where_a_prompt_ends_on_a_block_border() -> None:
    engine = start(3, "a" * 8)
    engine.step()
    assert engine.scheduler.schedule().copies == []


def test_samples_beyond_max_num_seqs_keep_the_prompt_and_compute_none_of_it() -> None:
    engine = start(5, "a" * 10, max_num_seqs=2, prefix_cache=False)
    done = finish(engine, [])
    assert sorted(request.sample_index for request in done) == [0, 1, 2, 3, 4]
    assert engine.runner.computed[0][:10] == list(range(10))
    assert min(engine.runner.computed[0][10:]) == 10
    assert engine.stats.num_recomputed_tokens == 0


def test_cached_tokens_of_later_samples_are_the_whole_prompt() -> None:
    done = finish(start(3, "a" * 10), [])
    assert {request.sample_index: request.num_cached_tokens for request in done} == {0: 0, 1: 10, 2: 10}


def test_a_prompt_counts_once_a_row() -> None:
    engine = start(3, "a" * 10)
    finish(engine, [])
    assert engine.stats.prompt == PromptTokens(first=8, tail=2)
    assert engine.stats.groups[None].num_rows == 1


def test_all_samples_fail_with_a_prompt_that_outgrows_the_pool() -> None:
    engine = start(3, "a" * 8, num_blocks=2)
    done = finish(engine, [])
    assert [request.finish_reason for request in done] == [FinishReason.ERROR] * 3


def test_empty_slots_of_a_shared_half_filled_block_count_once() -> None:
    engine = start(3, "a" * 10)
    engine.step()
    assert engine.stats.num_empty_slots == 2


def test_sharing_is_what_samples_save() -> None:
    engine = start(4, "a" * 12)
    engine.step()
    assert engine.stats.sharing == 1 - 3 / 12


@examples(600)
@given(
    job=random_jobs(),
    n=st.integers(1, 5),
    broken_rows=st.frozensets(st.integers(0, 9), max_size=2),
)
def test_no_sample_and_no_token_is_lost_or_mixed_up(job: RandomJob, n: int, broken_rows: frozenset[int]) -> None:
    engine = job.engine(EndingRunner(job.block_size, broken_rows))
    done = finish(engine, with_samples(job.requests(), n))
    assert sorted((r.row_index, r.sample_index) for r in done) == [
        (r, s) for r in range(len(job.prompts)) for s in range(n)
    ]
    for request in done:
        if request.finish_reason is not FinishReason.ERROR:
            assert request.output_token_ids == alone(request.row_index, request.sample_index, request.max_tokens)
        else:
            assert request.row_index in broken_rows or "KV pool" in str(request.error)
    check_accounts(job, engine, done)
