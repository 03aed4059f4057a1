"""A pool of `num_blocks_needed` is enough: an engine with a fake model never holds more, waits or evicts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.request import Request, SampledToken
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from tests.plan.texts import forests, pack


def requests(plan: Plan, tokens: PackedTokens, max_tokens: list[int]) -> list[Request]:
    shared = [None] * len(plan.order) if plan.shared_with_next is None else plan.shared_with_next.tolist()
    return [
        Request(row, tokens[row], SamplingParams(), 0, max_tokens=max_tokens[row], shared_with_next=shared[visit_index])
        for visit_index, row in enumerate(plan.order.tolist())
    ]


@settings(max_examples=200, deadline=None)
@given(
    texts=forests,
    data=st.data(),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_num_seqs=st.integers(1, 8),
    max_batched_tokens=st.integers(1, 64),
    by_prefix=st.booleans(),
    share=st.booleans(),
)
def test_the_pool_is_enough(
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
