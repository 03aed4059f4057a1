"""What a plan knows beforehand; four rows, blocks of 4 tokens."""

from __future__ import annotations

import numpy as np

from batchgen.plan.plan import Plan, make_plan

TEXTS = ["aaaabbbb1", "cccc", "aaaabbbb2", "aaaa"]


def plan_of(*, by_prefix: bool = True, share: bool = True, max_num_seqs: int = 4) -> Plan:
    prompts = [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in TEXTS]
    return make_plan(
        prompts, range(4), [4] * 4, block_size=4, max_num_seqs=max_num_seqs, by_prefix=by_prefix, share=share
    )


def test_hit_ceiling_is_the_shared_full_blocks() -> None:
    # "aaaa" is computed by the row that ends on it and taken by two, "bbbb" computed by one and taken by one.
    assert plan_of().hit_ceiling == 12
    assert plan_of(share=False).hit_ceiling == 0


def test_input_order_has_the_same_ceiling_and_no_known_future() -> None:
    plan = plan_of(by_prefix=False)
    assert plan.order == [0, 1, 2, 3]
    assert plan.shared_with_next is None
    assert plan.hit_ceiling == 12


def test_blocks_needed_are_the_distinct_blocks_of_the_job() -> None:
    # Rows store 12, 7, 12 and 7 tokens in 3, 2, 3 and 2 blocks; 3 of those are shared.
    assert plan_of().num_blocks_needed == 7
    assert plan_of(share=False).num_blocks_needed == 10


def test_blocks_needed_are_limited_by_the_rows_at_once() -> None:
    assert plan_of(max_num_seqs=1).num_blocks_needed == 6  # the largest row and one more path for the next


def test_an_empty_plan_needs_nothing() -> None:
    plan = make_plan([], [], [], block_size=4, max_num_seqs=1, by_prefix=True)
    assert (plan.order, plan.hit_ceiling, plan.num_blocks_needed) == ([], 0, 0)
