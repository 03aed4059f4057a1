"""A device that runs out of memory in a step: the step is undone, the next ones are smaller, and no answer changes."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.request import Request
from batchgen.errors import CapacityError
from batchgen.models.device import is_out_of_memory
from batchgen.request_output import FinishReason
from batchgen.stats.prompt_tokens import PromptTokens
from tests.engine.samples import SmallDevice, alone, with_samples
from tests.engine.simulated import CheckedEngine, RandomJob, finish, make_engine, make_requests, random_jobs
from tests.examples import examples


def start(prompts: list[str], runner: SmallDevice, n: int = 1, **given: int | bool | None) -> CheckedEngine:
    engine = make_engine(**given)
    engine.runner = runner
    for request in with_samples(make_requests(prompts, [4] * len(prompts)), n):
        engine.scheduler.add(request)
    return engine


def test_a_step_too_large_is_halved_until_it_fits() -> None:
    engine = start(["a" * 20], SmallDevice(4, most_tokens=6), max_batched_tokens=32)
    assert engine.step() == []
    assert (engine.scheduler.max_batched_tokens, engine.scheduler.max_num_seqs) == (10, 4)
    engine.step()
    assert (engine.scheduler.max_batched_tokens, engine.scheduler.max_num_seqs) == (5, 4)
    [request] = finish(engine, [])
    assert request.output_token_ids == alone(0, 0, 4)


def test_rows_that_decode_become_fewer_as_well() -> None:
    engine = start(["aaaa", "bbbb", "cccc", "dddd"], SmallDevice(4, most_tokens=2))
    assert len(finish(engine, [])) == 4
    assert engine.scheduler.max_num_seqs == 2


def test_what_the_step_was_to_compute_left_the_index() -> None:
    engine = start(["a" * 8 + "b", "a" * 8 + "c"], SmallDevice(4, frozenset([1])))
    engine.step()
    cache = engine.scheduler.cache
    assert (cache.pool.num_free, cache.match(engine.scheduler.waiting[0].prompt_token_ids)) == (64, [])


def test_an_undone_step_is_not_counted() -> None:
    engine = start(["a" * 8 + "b", "a" * 8 + "c"], SmallDevice(4, frozenset([1])))
    finish(engine, [])
    assert engine.stats.prompt == PromptTokens(hit=8, first=8, tail=2)
    assert engine.stats.num_recomputed_tokens == 0


def test_samples_that_began_in_the_step_begin_again() -> None:
    engine = start(["a" * 10], SmallDevice(4, frozenset([1])), n=3)
    engine.step()
    assert [len(request.later_samples) for request in engine.scheduler.waiting] == [2]
    assert len(finish(engine, [])) == 3


def test_a_device_without_room_for_one_token_ends_the_run() -> None:
    engine = start(["a" * 8], SmallDevice(4, most_tokens=0))
    with pytest.raises(CapacityError, match=r"no memory left for a step of a single token.*finished rows are kept"):
        finish(engine, [])


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "batchgen"):
        finish(start(["a" * 20], SmallDevice(4, most_tokens=3)), [])
    [record] = [each for each in caplog.records if each.name == "batchgen"]
    assert "ran out of memory in a step of 20 tokens" in record.message


def test_torch_says_it_by_type_or_in_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


@examples(500)
@given(
    job=random_jobs(budgets=(2, 5, 16, 64), expected_tokens=[None]),
    n=st.integers(1, 4),
    fails_at=st.frozensets(st.integers(1, 40), max_size=6),
)
def test_no_answer_changes_and_nothing_wrong_is_read(job: RandomJob, n: int, fails_at: frozenset[int]) -> None:
    engine = job.engine(SmallDevice(job.block_size, fails_at))
    done = finish(engine, with_samples(job.requests(), n))
    assert sorted((r.row_index, r.sample_index) for r in done) == [
        (r, s) for r in range(len(job.prompts)) for s in range(n)
    ]
    for request in done:
        check_answer(request)
    assert engine.scheduler.cache.pool.num_used == 0
    assert engine.scheduler.cache.pool.num_idle == 0 or not job.settings["by_prefix"]
    assert engine.stats.prompt.total == sum(map(len, job.prompts))


def check_answer(request: Request) -> None:
    if request.finish_reason is FinishReason.ERROR:
        assert "KV pool" in str(request.error)
    else:
        assert request.output_token_ids == alone(request.row_index, request.sample_index, request.max_tokens)
