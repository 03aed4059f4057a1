"""Results one step late: what is decided while a step is under way, and what becomes of the token nobody wanted."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.request import PENDING_TOKEN, Outcome, Request, SampledToken
from batchgen.engine.step import OutOfMemory, SchedulerOutput
from batchgen.errors import CapacityError
from batchgen.request_output import FinishReason
from batchgen.sampling_params import SamplingParams
from tests.engine.samples import END, SmallDevice, with_samples
from tests.engine.simulated import (
    CheckedEngine,
    CheckingRunner,
    RandomJob,
    finish,
    make_engine,
    make_requests,
    random_jobs,
    tokens,
)
from tests.examples import examples


class ScriptedRunner(CheckingRunner):
    """Ends each row after so many tokens."""

    lag = 1

    def __init__(self, *ends_after: int) -> None:
        super().__init__(4)
        self.ends_after = ends_after

    def outcome(self, request: Request) -> Outcome:
        return SampledToken(END if request.num_output_tokens == self.ends_after[request.row_index] else 7)


def start(
    prompts: list[str], runner: CheckingRunner, max_tokens: int = 40, **given: int | bool | None
) -> CheckedEngine:
    engine = make_engine(**given)
    engine.runner = runner
    for request in with_samples(make_requests(prompts, [max_tokens] * len(prompts)), 1):
        engine.scheduler.add(request)
    return engine


def test_a_step_begins_before_the_results_of_the_one_before_are_there() -> None:
    engine = start(["aaaa"], ScriptedRunner(9))
    [request] = engine.scheduler.waiting
    sizes = []
    for _ in range(3):
        engine.step()
        sizes.append((len(engine.runner.computed[0]), len(request.output_token_ids)))
    assert sizes == [(4, 0), (5, 1), (6, 2)]


def test_a_pending_token_counts_and_has_no_id() -> None:
    request = Request(0, tokens("ab"), SamplingParams(), 0, max_tokens=9)
    request.append(SampledToken(7))
    request.num_pending_tokens = 1
    assert (request.num_output_tokens, request.num_tokens) == (2, 4)
    assert request.token_ids(1, 4) == [ord("b"), 7, PENDING_TOKEN]
    request.append(SampledToken(8))
    assert request.token_ids(1, 4) == [ord("b"), 7, 8]


def test_a_row_that_ends_by_its_token_has_one_more_that_is_no_output() -> None:
    engine = start(["aaaa"], ScriptedRunner(2))
    [request] = finish(engine, [])
    stats = engine.stats
    assert request.output_token_ids == [7, 7, END]
    assert (stats.num_output_tokens, stats.num_sampled_tokens, stats.num_overrun_tokens) == (3, 3, 1)
    assert stats.num_decode_tokens == 2 + 1


def test_a_row_that_ends_by_its_length_leaves_before_its_last_token_is_there() -> None:
    engine = start(["aaaa", "bbbb"], ScriptedRunner(99, 99), max_tokens=3, max_num_seqs=1)
    assert [engine.step() for _ in range(3)] == [[], [], []]
    assert (engine.scheduler.running, engine.scheduler.cache.pool.num_used) == ([], 0)
    [first] = engine.step()
    assert (first.row_index, [request.row_index for request in engine.scheduler.running]) == (0, [1])
    finish(engine, [])
    assert (engine.stats.num_steps, engine.stats.num_overrun_tokens) == (6, 0)


class Anything:
    """Allows every token and has no end."""

    error = None

    def allowed(self) -> npt.NDArray[np.uint8]:
        return np.full(1, 0xFF, np.uint8)

    def feed(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("params", "constraint", "is_late"),
    [
        ({}, None, True),
        ({"min_tokens": 2, "logit_bias": ((5, 1.0),), "bad_words": ((5,),), "logprobs": 2}, None, True),
        ({"presence_penalty": 0.5}, None, False),
        ({"repetition_penalty": 1.5}, None, False),
        ({"bad_words": ((5, 6),)}, None, False),
        ({"prompt_logprobs": 0}, None, False),
        ({}, Anything(), False),
    ],
)
def test_results_are_late_where_only_their_number_matters(
    params: dict[str, Any], constraint: Anything | None, is_late: bool
) -> None:
    engine = make_engine()
    engine.runner.lag = 1
    request = Request(0, tokens("aaaa"), SamplingParams(**params), 0, max_tokens=4, constraint=constraint)
    engine.scheduler.add(request)
    engine.step()
    assert len(engine.runner.under_way) == is_late


def test_nobody_gives_way_whom_the_pending_token_ends() -> None:
    """Both rows fill their two blocks with the fifth token; that of the second one ends it."""
    engine = start(["aaaa", "bbbb"], ScriptedRunner(9, 4), max_tokens=8, num_blocks=4, expected_tokens=1)
    finish(engine, [])
    assert engine.stats.num_preemptions == 0


def test_a_row_without_room_waits_for_one_step_only() -> None:
    """The first row's second token needs a block; the second row has three slots left in its own."""
    engine = start(["aaaa", "bbbbb"], ScriptedRunner(9, 9), num_blocks=3, expected_tokens=1)
    for _ in range(3):
        engine.step()
    assert engine.runner.computed == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}
    assert [request.row_index for request in engine.scheduler.waiting] == [1]


def test_a_row_too_large_for_the_pool_may_end_by_the_pending_token() -> None:
    [request] = finish(start(["aaaa"], ScriptedRunner(4), num_blocks=2), [])
    assert (request.finish_reason, len(request.output_token_ids)) == (FinishReason.STOP, 5)


def test_a_row_alone_that_outgrows_the_pool_still_fails() -> None:
    [request] = finish(start(["aaaa"], ScriptedRunner(99), num_blocks=2), [])
    assert "generated 5" in str(request.error)


def test_the_step_under_way_gives_its_results_when_the_next_one_finds_no_memory() -> None:
    runner = SmallDevice(4, frozenset([2]))
    runner.lag = 1
    engine = start(["aaaa", "bbbbbbbb"], runner, max_tokens=1, max_num_seqs=1)
    assert engine.step() == []
    [first] = engine.step()
    assert (first.row_index, len(runner.under_way), engine.scheduler.max_batched_tokens) == (0, 0, 4)
    assert [request.row_index for request in finish(engine, [])] == [1]


def test_a_row_that_comes_again_knows_who_ended_with_the_step_under_way() -> None:
    """The second row ends and nobody is left who shares more than one block with the first."""

    calls = count(1)

    class Device(ScriptedRunner):
        def run(self, step: SchedulerOutput) -> list[Outcome]:
            if next(calls) == 3:
                raise OutOfMemory
            return super().run(step)

    engine = start(["aaaabbbb1", "aaaabbbb2", "aaaac"], Device(9, 1, 9), max_num_seqs=2, expected_tokens=1)
    ended = [engine.step() for _ in range(3)]
    assert [[request.row_index for request in finished] for finished in ended] == [[], [], [1]]
    finish(engine, [])
    assert engine.scheduler.cache.pool.num_idle == 0


def test_results_come_before_the_run_ends_for_want_of_memory() -> None:
    class FullDevice(SmallDevice):
        def run(self, step: SchedulerOutput) -> list[Outcome]:
            self.most_tokens = 0 if self.num_calls else 1
            return super().run(step)

    runner = FullDevice(4)
    runner.lag = 1
    engine = start(["a", "b"], runner, max_tokens=1, max_num_seqs=1)
    ended: list[Request] = []
    with pytest.raises(CapacityError):
        ended.extend(request for finished in engine.run([]) for request in finished)
    assert [request.row_index for request in ended] == [0]


def test_a_step_under_way_is_dropped_with_the_run() -> None:
    engine = start(["aaaa"], ScriptedRunner(9))
    for _ in zip(range(2), engine.run([]), strict=False):
        pass
    [request] = engine.scheduler.running
    assert request.output_token_ids == [7]


def test_the_time_of_a_step_begins_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr("batchgen.engine.observer.time.perf_counter", lambda: float(next(clock)))
    engine = start(["aaaa", "bbbb"], ScriptedRunner(3, 5))
    finish(engine, [])
    ends = [end for _, end, _ in engine.stats.log.samples]
    seconds = [step.seconds for _, _, step in engine.stats.log.samples]
    assert [after - before for before, after in pairwise(ends)] == seconds[1:]


class RecordingRunner(CheckingRunner):
    """Writes down every step."""

    def __init__(self, block_size: int, lag: int) -> None:
        super().__init__(block_size)
        self.lag = lag
        self.steps: list[Any] = []

    def run(self, step: SchedulerOutput) -> list[Outcome]:
        for chunk in step.chunks:
            request, samples = chunk.request, [sample.sample_index for sample in chunk.samples]
            self.steps.append((request.row_index, chunk.start, chunk.num_tokens, samples, tuple(request.block_table)))
        self.steps.append(list(step.copies))
        return super().run(step)


@examples(150)
@given(job=random_jobs(expected_tokens=[1, 2, 5]), n=st.integers(1, 3))
def test_where_rows_end_by_their_length_the_same_steps_are_done(job: RandomJob, n: int) -> None:
    """In a pool with room for all of them; in a tight one a row that has no room waits a step before another goes."""
    steps = []
    for lag in (0, 1):
        runner = RecordingRunner(job.block_size, lag)
        engine = make_engine(num_blocks=1000, **job.settings)
        engine.runner = runner
        finish(engine, with_samples(job.requests(), n))
        steps.append(runner.steps)
    assert steps[0] == steps[1]


@examples(200)
@given(
    job=random_jobs(budgets=(2, 5, 16, 64)),
    n=st.integers(1, 4),
    broken_rows=st.frozensets(st.integers(0, 9), max_size=2),
    fails_at=st.frozensets(st.integers(1, 40), max_size=4),
)
def test_the_same_comes_out_with_and_without_lag(
    job: RandomJob, n: int, broken_rows: frozenset[int], fails_at: frozenset[int]
) -> None:
    results = []
    for lag in (0, 1):
        runner = SmallDevice(job.block_size, fails_at)
        runner.broken_rows = broken_rows
        engine = job.engine(runner)
        runner.lag = lag
        done = finish(engine, with_samples(job.requests(), n))
        assert not runner.under_way
        assert not any(r.num_pending_tokens for r in done)
        assert len({(r.row_index, r.sample_index) for r in done}) == len(done) == n * len(job.prompts)
        results.append({(r.row_index, r.sample_index): (r.finish_reason, r.error, r.output_token_ids) for r in done})
    assert results[0] == results[1]
