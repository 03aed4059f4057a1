"""What a plan knows beforehand; four rows, blocks of 4 tokens. Its pool is enough for a simulated engine."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.request import Request, SampledToken
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from tests.examples import examples
from tests.plan.texts import forests, pack

TEXTS = ["aaaabbbb1", "cccc", "aaaabbbb2", "aaaa"]


def plan_of(*, by_prefix: bool = True, share: bool = True, max_num_seqs: int = 4) -> Plan:
    return make_plan(
        pack(TEXTS), range(4), [4] * 4, block_size=4, max_num_seqs=max_num_seqs, by_prefix=by_prefix, share=share
    )


def test_rows_are_visited_by_prefix_and_know_their_neighbours() -> None:
    plan = plan_of()
    assert plan.order.tolist() == [3, 0, 2, 1]
    assert plan.shared_with_next is not None
    assert plan.shared_with_next.tolist() == [4, 8, 0, 0]
    assert plan.seen.tolist() == [0, 4, 8, 0]


def test_tokens_and_what_of_them_is_unique() -> None:
    plan = plan_of()
    assert (plan.num_prompt_tokens, plan.num_unique_tokens) == (26, 14)  # aaaa bbbb 1 2 cccc


def test_hit_ceiling_is_the_shared_full_blocks() -> None:
    assert plan_of().hit_ceiling == 12
    assert plan_of(share=False).hit_ceiling == 0


def test_other_block_sizes_are_known() -> None:
    for plan, hits in ((plan_of(), 8), (plan_of(share=False), 0)):
        assert plan.ceilings == {8: hits, 16: 0, 32: 0, 64: 0, 128: 0}
        # Rows store 12, 7, 12 and 7 tokens.
        assert plan.tail_waste == {8: 4 + 1 + 4 + 1, 16: 26, 32: 90, 64: 218, 128: 474}


def test_input_order_has_the_same_ceiling_and_no_known_future() -> None:
    plan = plan_of(by_prefix=False)
    assert plan.order.tolist() == [0, 1, 2, 3]
    assert plan.shared_with_next is None
    assert plan.seen.tolist() == [0, 0, 8, 4]
    assert plan.hit_ceiling == 12
    assert plan.depth_first.positions.tolist() == [3, 0, 2, 1]


def test_what_was_seen_is_right_where_long_outputs_go_first() -> None:
    plan = make_plan(
        pack(["aaaa11", "aaaa1", "aaaa2"]), range(3), [1, 9, 8], block_size=4, max_num_seqs=1, by_prefix=True
    )
    assert plan.order.tolist() == [1, 2, 0]
    assert plan.seen.tolist() == [0, 4, 5]  # the last one shares most with the first


def test_a_scored_prompt_finds_nothing_and_leaves_all_to_the_others() -> None:
    def ceiling(scored: list[bool]) -> int:
        tokens = pack(["aaaabbbb1", "aaaabbbb2", "aaaa3"])
        plan = make_plan(tokens, range(3), [1] * 3, block_size=4, max_num_seqs=1, by_prefix=True, scored=scored)
        return plan.hit_ceiling

    assert ceiling([False, False, False]) == 12
    assert ceiling([False, True, False]) == 12  # row 0 can come after row 1
    assert ceiling([True, True, False]) == 4


def test_blocks_needed_are_the_distinct_blocks_of_the_job() -> None:
    # Rows store 12, 7, 12 and 7 tokens in 3, 2, 3 and 2 blocks; 3 of those are shared.
    assert plan_of().num_blocks_needed == 7
    assert plan_of(share=False).num_blocks_needed == 10


def test_in_input_order_a_row_that_ends_on_a_border_computes_its_last_block_again() -> None:
    assert plan_of(by_prefix=False).num_blocks_needed == 8  # "aaaa" comes when its block is there


def test_blocks_needed_are_limited_by_the_rows_at_once() -> None:
    assert plan_of(max_num_seqs=1).num_blocks_needed == 6  # the largest row and one more path for the next
    assert plan_of(max_num_seqs=1, share=False).num_blocks_needed == 3  # nothing is kept for the next


def test_an_empty_plan_needs_nothing() -> None:
    plan = make_plan(PackedTokens.pack([]), np.arange(0), [], block_size=4, max_num_seqs=1, by_prefix=True)
    assert (len(plan.order), plan.hit_ceiling, plan.num_blocks_needed) == (0, 0, 0)


def requests(plan: Plan, tokens: PackedTokens, max_tokens: list[int]) -> list[Request]:
    shared = [None] * len(plan.order) if plan.shared_with_next is None else plan.shared_with_next.tolist()
    return [
        Request(row, tokens[row], SamplingParams(), 0, max_tokens=max_tokens[row], shared_with_next=shared[visit_index])
        for visit_index, row in enumerate(plan.order.tolist())
    ]


@examples(200)
@given(
    texts=forests,
    data=st.data(),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_num_seqs=st.integers(1, 8),
    max_batched_tokens=st.integers(1, 64),
    by_prefix=st.booleans(),
    share=st.booleans(),
)
def test_an_engine_with_num_blocks_needed_never_waits_or_evicts(
    texts: list[str],
    data: st.DataObject,
    block_size: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    by_prefix: bool,
    share: bool,
) -> None:
    max_tokens = data.draw(st.lists(st.integers(1, 20), min_size=len(texts), max_size=len(texts)))
    tokens = pack(texts)
    plan = make_plan(
        tokens, range(len(texts)), max_tokens,
        block_size=block_size, max_num_seqs=max_num_seqs, by_prefix=by_prefix, share=share,
    )  # fmt: skip
    scheduler = make_scheduler(
        EngineSettings(
            num_blocks=plan.num_blocks_needed,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=1000,
            expected_tokens=None,
            prefix_cache=share,
            by_prefix=by_prefix,
        )
    )
    for request in requests(plan, tokens, max_tokens):
        scheduler.add(request)
    matched = 0
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        assert not step.preempted
        assert not step.waits_for_blocks
        assert scheduler.cache.num_evictions == 0
        matched += sum(admission.num_matched_tokens for admission in step.admissions)
        scheduler.update(step, [SampledToken(7)] * len(step.sampled_requests))
    if by_prefix:
        assert matched == plan.hit_ceiling
