"""Logprobs of completion and prompt against transformers, one row at a time, in float32, however the rows are run."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from batchgen.engine.request import Request
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from tests.engine.harness import PROMPTS, make_engine
from tests.tiny_models import context_model

MAX_TOKENS = 6
TOP = 3
WAYS: dict[str, dict[str, Any]] = {
    "one at a time": {"max_num_seqs": 1},
    "together": {},
    "small chunks": {"max_batched_tokens": 7, "block_size": 8},
    "late results": {"lag": 1, "max_batched_tokens": 50},
    "no cache": {"prefix_cache": False},
    "preempted": {"num_blocks": 14, "expected_tokens": 1, "max_batched_tokens": 500},
    "preempted, small blocks": {"num_blocks": 52, "block_size": 4, "expected_tokens": 1, "max_batched_tokens": 300},
}
# Ways and numbers of scored rows in which a row is preempted
PREEMPTED = {("preempted", 0), ("preempted", 3), ("preempted, small blocks", 0), ("preempted, small blocks", 9)}


@cache
def expected() -> list[tuple[list[int], torch.Tensor]]:
    """Of each prompt the greedy tokens and the logprobs [prompt + completion - 1, vocab] of the stock model."""
    model = context_model()
    found = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(MAX_TOKENS):
            logits = model(torch.tensor([ids])).logits[0]
            ids.append(int(logits[-1, :-1].argmax()))
        found.append((ids, logits.log_softmax(-1).detach()))
    return found


def run(scored: set[int], **settings: Any) -> tuple[dict[int, Request], Any]:
    """Rows in `scored` ask for the logprobs of their prompts, all for those of their completions."""
    block_size = settings.get("block_size", 16)
    store = PackedTokens.pack(PROMPTS)
    order = visiting_order(lexicographic_order(store, range(len(store))), store, [MAX_TOKENS] * len(store), block_size)
    requests = [
        Request(
            row,
            store[row],
            SamplingParams(logprobs=TOP, prompt_logprobs=0 if row in scored else None),
            rng_key=row,
            max_tokens=MAX_TOKENS,
            shared_with_next=shared,
        )
        for row, shared in zip(order.positions.tolist(), order.shared.tolist(), strict=True)
    ]
    engine = make_engine(context_model(), **settings)
    for _ in engine.run(requests):
        engine.scheduler.check_integrity()
    return {request.row_index: request for request in requests}, engine.stats


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scored", [set(), {0, 5, 7}, set(range(len(PROMPTS)))], ids=["none", "some", "all"])
def test_tokens_and_logprobs_equal_transformers(scored: set[int], way: str) -> None:
    done, stats = run(scored, **WAYS[way])
    for row, (ids, logprobs) in enumerate(expected()):
        num_prompt = len(PROMPTS[row])
        assert done[row].output_token_ids == ids[num_prompt:]
        for place, token in enumerate(done[row].output_logprobs, start=num_prompt):
            assert token.logprob == pytest.approx(float(logprobs[place - 1, ids[place]]), abs=1e-4)
            best = logprobs[place - 1, :-1].topk(TOP)
            assert [token_id for token_id, _ in token.top] == best.indices.tolist()
            assert [value for _, value in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert len(done[row].prompt_logprobs) == (num_prompt - 1 if row in scored else 0)
        for place, token in enumerate(done[row].prompt_logprobs, start=1):
            assert token.token_id == ids[place]
            assert token.logprob == pytest.approx(float(logprobs[place - 1, ids[place]]), abs=1e-4)
    assert (stats.num_preemptions > 0) == ((way, len(scored)) in PREEMPTED)
    assert stats.prompt.total == sum(map(len, PROMPTS))


def test_scored_prompts_are_computed_whole_and_counted_so() -> None:
    """Rows 5 to 8 begin with the same 40 tokens, two full blocks."""
    _, stats = run(set(range(len(PROMPTS))))
    assert stats.prompt.hit == 0
    assert stats.num_prefill_tokens == sum(map(len, PROMPTS))
