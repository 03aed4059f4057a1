"""A row whose logits are not finite: what only it used leaves the index, what others use stays. Blocks of 4 tokens."""

from __future__ import annotations

from batchgen.request_output import FinishReason
from tests.engine.simulated import CheckedEngine, CheckingRunner, finish, make_engine, make_requests, tokens

SHARED = ["aaaabbbb1", "aaaabbbb2"]


def start(prompts: list[str], broken: int, max_tokens: list[int], **given: int | bool | None) -> CheckedEngine:
    engine = make_engine(**given)
    engine.runner = CheckingRunner(4, frozenset([broken]))
    for request in make_requests(prompts, max_tokens):
        engine.scheduler.add(request)
    return engine


def num_indexed(engine: CheckedEngine, prompt: str) -> int:
    return len(engine.scheduler.cache.match(tokens(prompt)))


def test_blocks_that_only_it_used_are_not_kept_for_the_next_row() -> None:
    engine = start(SHARED, broken=0, max_tokens=[1, 1], max_num_seqs=1)
    engine.step()
    assert (num_indexed(engine, SHARED[1]), engine.scheduler.cache.pool.num_idle) == (0, 0)
    [other] = finish(engine, [])
    assert (other.finish_reason, other.num_cached_tokens) == (FinishReason.LENGTH, 0)


def test_of_a_row_that_is_sound_they_are() -> None:
    engine = start(SHARED, broken=9, max_tokens=[1, 1], max_num_seqs=1)
    engine.step()
    assert num_indexed(engine, SHARED[1]) == 2


def test_blocks_that_a_running_row_holds_stay_and_so_does_that_row() -> None:
    engine = start(SHARED, broken=0, max_tokens=[3, 3])
    [failed] = engine.step()
    assert failed.finish_reason is FinishReason.ERROR
    assert num_indexed(engine, SHARED[1]) == 2
    [other] = finish(engine, [])
    assert (other.finish_reason, other.num_cached_tokens) == (FinishReason.LENGTH, 8)


def test_blocks_under_those_that_another_row_left_stay() -> None:
    engine = start(["aaaabbbb1", "aaaacccc2"], broken=1, max_tokens=[1, 1], max_num_seqs=1, by_prefix=False)
    for request in engine.scheduler.waiting:
        request.shared_with_next = None
    finish(engine, [])
    assert (num_indexed(engine, "aaaabbbb"), num_indexed(engine, "aaaacccc")) == (2, 1)
