"""Half-shared blocks: a row that shares the beginning of a block with an earlier one copies it. Blocks of 4 tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.request import Request
from batchgen.stats.prompt_tokens import PromptTokens
from tests.engine.simulated import (
    CheckedEngine,
    CheckingRunner,
    brute_force_ceiling,
    finish,
    make_engine,
    make_requests,
    random_prompts,
)
from tests.examples import examples

FULL_AND_HALF = ["aaaabbbb", "aaaabbxx"]  # a block and a half


def run(prompts: list[str], max_tokens: int = 1, **given: int | bool | None) -> tuple[CheckedEngine, list[Request]]:
    """One row a step, unless told otherwise."""
    engine = make_engine(**{"max_num_seqs": 1, **given})
    engine.runner = CheckingRunner(4)
    finish(engine, requests := make_requests(prompts, [max_tokens] * len(prompts)))
    return engine, requests


def test_the_beginning_of_a_block_is_copied_and_counted_apart() -> None:
    engine, requests = run(FULL_AND_HALF)
    assert engine.runner.computed[1] == [6, 7]
    assert engine.stats.prompt == PromptTokens(hit=4, copied=2, first=10)
    assert [request.num_cached_tokens for request in requests] == [0, 6]


def test_the_half_filled_end_of_a_prompt_is_copied_too() -> None:
    engine, _ = run(["aaaab", "aaaabc"])
    assert engine.stats.prompt == PromptTokens(hit=4, copied=1, first=4, tail=2)


def test_of_an_equal_prompt_all_but_the_last_token_is_found() -> None:
    engine, _ = run(["aaaabbbb", "aaaabbbb"])
    assert engine.stats.prompt.found == 7


def test_rows_shorter_than_a_block_copy() -> None:
    engine, _ = run(["abc", "abd"])
    assert engine.stats.prompt == PromptTokens(copied=2, tail=4)


def test_what_is_computed_in_the_same_step_is_written_twice() -> None:
    engine, _ = run(FULL_AND_HALF, max_num_seqs=2)
    assert engine.stats.num_steps == 1
    assert engine.stats.prompt == PromptTokens(hit=4, copied=2, first=10)


def test_half_of_a_step_is_copied_and_half_written_twice() -> None:
    """The first row has half of its second block from step 1, and the rest from step 2, where the others come."""
    engine = make_engine(max_num_seqs=4, max_batched_tokens=12, block_size=8)
    engine.runner = CheckingRunner(8)
    for request in make_requests(["a" * 8 + end for end in ("bbbbbbbb", "bbbbbbcc", "bbbbbbcd")], [1, 1, 1], 8):
        engine.scheduler.add(request)
    engine.step()
    step = engine.scheduler.schedule()
    source, first, second = (request.block_table[1] for request in engine.scheduler.running)
    assert step.copies == [(source, first), (source, second)]
    assert [(repeat.request.row_index, *repeat[1:]) for repeat in step.repeats] == [
        (0, 12, 14, first),
        (0, 12, 14, second),
        (1, 14, 15, second),
    ]
    assert [chunk.num_tokens for chunk in step.chunks] == [4, 2, 1]


def test_with_many_rows_at_once_every_shared_token_is_found() -> None:
    engine, requests = run(["aaaab", "aaaabbc", "aaaabbd", "aaaabbde"], max_num_seqs=4)
    assert engine.stats.num_steps == 1
    assert [request.num_cached_tokens for request in requests] == [0, 5, 6, 7]


def test_a_copy_comes_from_a_running_row_as_well() -> None:
    engine, _ = run(FULL_AND_HALF, max_tokens=9, max_num_seqs=2, max_batched_tokens=8)
    assert engine.stats.prompt.copied == 2


def test_a_half_shared_block_waits_for_its_copy_and_then_goes() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.runner = CheckingRunner(4)
    for request in make_requests([*FULL_AND_HALF, "cccc"], [1, 1, 1]):
        engine.scheduler.add(request)
    pool = engine.scheduler.cache.pool
    engine.step()
    assert pool.num_idle == 2  # the shared block, and the half-shared one
    engine.step()
    assert pool.num_idle == 0


def test_nothing_is_copied_without_a_prefix_cache() -> None:
    engine, _ = run(FULL_AND_HALF, prefix_cache=False)
    assert engine.stats.prompt.found == 0


def test_a_full_pool_gives_the_half_shared_block_away_first() -> None:
    engine, _ = run(["aaaabbbb", "aaaabbxxxxxx"], num_blocks=3)
    assert engine.stats.prompt.hit == 4


@examples(300)
@given(
    prompts=random_prompts(),
    block_size=st.sampled_from([2, 4, 8]),
    max_num_seqs=st.integers(1, 8),
    max_batched_tokens=st.sampled_from([1, 3, 8, 64]),
    lag=st.sampled_from([0, 1]),
)
def test_copies_take_nothing_from_full_blocks(
    prompts: list[str], block_size: int, max_num_seqs: int, max_batched_tokens: int, lag: int
) -> None:
    engine = make_engine(
        num_blocks=600, block_size=block_size, max_num_seqs=max_num_seqs, max_batched_tokens=max_batched_tokens
    )
    engine.runner = CheckingRunner(block_size)
    engine.runner.lag = lag
    requests = make_requests(prompts, [3] * len(prompts), block_size)
    finish(engine, requests)
    stats = engine.stats
    assert stats.prompt.hit == brute_force_ceiling(prompts, block_size)
    assert stats.num_prefill_tokens == stats.prompt.total - stats.prompt.found
    assert sum(request.num_cached_tokens or 0 for request in requests) == stats.prompt.found


@examples(200)
@given(prompts=random_prompts().map(sorted), block_size=st.sampled_from([2, 4, 8]))
def test_one_row_at_a_time_computes_only_what_is_new(prompts: list[str], block_size: int) -> None:
    """Without rows that run at once every token that the row before has is found, but for a prompt's last one."""
    engine = make_engine(num_blocks=600, block_size=block_size, max_num_seqs=1)
    engine.runner = CheckingRunner(block_size)
    requests = make_requests(prompts, [1] * len(prompts), block_size)
    finish(engine, requests)
    shared = [0, *(request.shared_with_next or 0 for request in requests[:-1])]
    for request, num_shared in zip(requests, shared, strict=True):
        assert (request.num_cached_tokens or 0) >= min(num_shared, request.num_prompt_tokens - 1)
