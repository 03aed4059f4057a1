"""LongRoPE with factors chosen once equals `generate` where that stays on the same side of the border."""

from __future__ import annotations

import pytest
import torch

from batchgen.models.rope import fix_longrope
from tests.engine.harness import make_engine, make_requests, run
from tests.families.harness import (
    BLOCK_SIZE,
    BORDER,
    LONG_ROWS,
    MAX_TOKENS,
    PINNED,
    PROMPTS,
    SHORT_ROWS,
    generate,
    longrope_model,
)
from tests.families.registry import with_config


@pytest.mark.skipif(not PINNED, reason="older versions of transformers cannot run LongRoPE without weights")
@pytest.mark.parametrize(("prompts", "max_model_len"), [(SHORT_ROWS, BORDER), (LONG_ROWS, 256)], ids=["short", "long"])
def test_equals_generate(prompts: list[list[int]], max_model_len: int) -> None:
    assert len(prompts) > 1
    model = longrope_model()
    alone = [generate(model, prompt).token_ids for prompt in prompts]
    fixed = with_config(model, fix_longrope(model.config, max_model_len).config)
    requests = make_requests(prompts, BLOCK_SIZE)
    for request in requests:
        request.max_tokens = MAX_TOKENS
    outputs = run(make_engine(fixed, block_size=BLOCK_SIZE, max_batched_tokens=24), requests)
    assert [outputs[row] for row in range(len(prompts))] == alone


def test_the_two_lists_of_factors_give_different_logits() -> None:
    model = longrope_model()
    ids = torch.tensor([PROMPTS[3]])
    with torch.inference_mode():
        short, long = (
            with_config(model, fix_longrope(model.config, limit).config)(ids).logits for limit in (BORDER, 256)
        )
    assert (short - long).abs().max() > 0.1
