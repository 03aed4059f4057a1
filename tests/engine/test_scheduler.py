"""Scheduler: small jobs by hand, then random ones; pool, index and requests are checked after every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.request import Failed, Request, RequestStatus, SampledToken
from batchgen.plan.plan import make_plan
from batchgen.plan.token_store import PackedTokens
from batchgen.request_output import FinishReason
from batchgen.sampling_params import SamplingParams
from tests.engine.simulated import (
    CheckingRunner,
    RandomJob,
    brute_force_ceiling,
    check_accounts,
    finish,
    make_engine,
    make_requests,
    random_jobs,
    tokens,
)
from tests.examples import examples


def test_a_prompt_is_cut_by_the_budget_only() -> None:
    engine = make_engine(max_batched_tokens=6)
    finish(engine, make_requests(["a" * 10, "b" * 5], [1, 1]))
    assert [len(positions) for positions in engine.runner.computed.values()] == [10, 5]
    assert engine.stats.num_steps == 3  # 6, then 4 + 2, then 3


def test_rows_of_one_step_share_the_block_that_one_of_them_fills() -> None:
    engine = make_engine()
    requests = make_requests(["aaaabbbbx", "aaaabbbby"], [1, 1])
    finish(engine, requests)
    assert engine.stats.num_steps == 1
    assert [request.num_cached_tokens for request in requests] == [0, 8]
    assert engine.runner.computed[requests[1].row_index] == [8]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = make_engine()
    requests = make_requests(["aaaabbbb", "aaaabbbb"], [1, 1])
    finish(engine, requests)
    assert [request.num_cached_tokens for request in requests] == [0, 7]


def test_admission_waits_for_the_blocks_a_row_is_expected_to_need() -> None:
    engine = make_engine(num_blocks=4, expected_tokens=5)  # each row: 4 + 5 - 1 tokens, 2 blocks
    for request in make_requests(["aaaa", "bbbb", "cccc"], [5, 5, 5]):
        engine.scheduler.add(request)
    engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (2, 1)
    assert engine.stats.num_waiting_steps == 1


def test_the_last_admitted_is_preempted_and_comes_back_first() -> None:
    engine = make_engine(num_blocks=4, expected_tokens=1)
    requests = make_requests(["aaaa", "bbbb", "cccc"], [9, 9, 9])  # each grows to 3 blocks
    done = finish(engine, requests)
    assert engine.stats.num_preemptions >= 1
    assert [request.row_index for request in done] == [0, 1, 2]
    assert all(request.output_token_ids == [7] * 9 for request in done)
    assert engine.stats.num_recomputed_tokens > 0


def test_recomputed_tokens_are_no_prompt_tokens() -> None:
    engine = make_engine(num_blocks=4, expected_tokens=1)
    finish(engine, make_requests(["aaaa", "bbbb", "cccc"], [9, 9, 9]))
    stats = engine.stats
    assert stats.prompt.total == 12
    # Each row computes its prompt and its first 8 tokens; the ninth is never an input.
    assert (
        stats.num_prefill_tokens + stats.num_decode_tokens == 3 * 12 - stats.prompt.found + stats.num_recomputed_tokens
    )


def test_a_row_alone_that_outgrows_the_pool_fails_and_the_next_runs() -> None:
    engine = make_engine(num_blocks=2)
    done = finish(engine, make_requests(["aaaa", "bbbb"], [40, 2]))
    assert [request.finish_reason for request in done] == [FinishReason.ERROR, FinishReason.LENGTH]
    assert "8 tokens" in str(done[0].error)


def test_end_token_and_length() -> None:
    engine = make_engine()
    prompt = tokens("aaaa")
    plain = Request(0, prompt, SamplingParams(), 0, max_tokens=3)
    ended = Request(1, prompt, SamplingParams(), 0, max_tokens=3, end_token_ids=frozenset([7]))
    finish(engine, [plain, ended])
    assert plain.finish_reason is FinishReason.LENGTH
    assert len(plain.output_token_ids) == 3
    assert ended.finish_reason is FinishReason.STOP
    assert ended.output_token_ids == [7]


def test_an_outcome_that_is_an_error_ends_its_row_only() -> None:
    engine = make_engine()
    requests = make_requests(["aaaa", "bbbb"], [1, 1])
    for request in requests:
        engine.scheduler.add(request)
    step = engine.scheduler.schedule()
    finished = engine.scheduler.update(step, [Failed("broken"), SampledToken(7)])
    assert [request.finish_reason for request in finished] == [FinishReason.ERROR, FinishReason.LENGTH]
    assert finished[0].error == "broken"
    engine.scheduler.check_integrity()


def test_fragmentation_of_the_worked_example() -> None:
    """Rows of 6, 50, 8 and 100 tokens in blocks of 16: 13 blocks with 44 empty slots."""
    engine = make_engine(block_size=16, max_batched_tokens=1000, prefix_cache=False)
    finish(engine, make_requests(["a" * 6, "b" * 50, "c" * 8, "d" * 100], [1] * 4, 16))
    assert engine.stats.peak_used_blocks == 13
    assert engine.stats.peak_internal_fragmentation == 44 / (13 * 16)


def test_shared_blocks_count_once_in_fragmentation() -> None:
    engine = make_engine(block_size=16, max_batched_tokens=1000)
    finish(engine, make_requests(["x" * 16 + end for end in "abcd"], [1] * 4, 16))
    assert engine.stats.peak_internal_fragmentation == pytest.approx(1 - 20 / 80)


# Random prefix forests: every prompt is a path through a small tree, with a tail of its own.
pieces = st.sampled_from(["a", "bb", "cccc", "dddd", "eeeeeeee", "f" * 12])
prompt_lists = st.lists(st.lists(pieces, min_size=1, max_size=6).map("".join), min_size=1, max_size=24)


@examples(150)
@given(
    prompts=prompt_lists,
    max_tokens=st.integers(1, 12),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_num_seqs=st.integers(1, 16),
    max_batched_tokens=st.integers(1, 64),
    lag=st.sampled_from([0, 1]),
)
def test_every_hit_that_is_possible_happens(
    prompts: list[str], max_tokens: int, block_size: int, max_num_seqs: int, max_batched_tokens: int, lag: int
) -> None:
    engine = make_engine(
        num_blocks=24 * 84, block_size=block_size, max_num_seqs=max_num_seqs, max_batched_tokens=max_batched_tokens
    )
    engine.runner.lag = lag
    done = finish(engine, make_requests(prompts, [max_tokens] * len(prompts), block_size))
    assert len(done) == len(prompts)
    assert engine.stats.prompt.hit == brute_force_ceiling(prompts, block_size)
    plan = make_plan(
        PackedTokens.pack([tokens(p) for p in prompts]), range(len(prompts)), [max_tokens] * len(prompts),
        block_size=block_size, max_num_seqs=max_num_seqs, by_prefix=True,
    )  # fmt: skip
    assert plan.hit_ceiling == engine.stats.prompt.hit
    assert engine.stats.peak_used_blocks <= plan.num_blocks_needed
    assert engine.scheduler.cache.pool.num_free == engine.scheduler.cache.pool.num_blocks


@examples(600)
@given(
    job=random_jobs(max_rows=16, most_tokens=20, block_sizes=(1, 2, 4)),
    broken_rows=st.frozensets(st.integers(0, 15), max_size=2),
)
def test_a_pool_as_small_as_can_be_loses_no_row_and_no_token(job: RandomJob, broken_rows: frozenset[int]) -> None:
    engine = job.engine(CheckingRunner(job.block_size, broken_rows))
    done = finish(engine, job.requests())
    assert sorted(request.row_index for request in done) == list(range(len(job.prompts)))
    for request in done:
        assert request.status is RequestStatus.FINISHED
        if request.finish_reason is not FinishReason.ERROR:
            assert request.output_token_ids == [7] * job.max_tokens[request.row_index]
        else:
            assert request.row_index in broken_rows or "KV pool" in str(request.error)
    check_accounts(job, engine, done)
