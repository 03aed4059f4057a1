"""A LongRoPE model in a job: the context limit chooses the factors, and job.yaml says which."""

from __future__ import annotations

import pytest

from tests.end_to_end.harness import TinyRunner
from tests.families.harness import BORDER, LONG_ROWS, MAX_TOKENS, PINNED, SHORT_ROWS, generate, longrope_model
from tests.tiny_models import IM_END, VOCAB_SIZE


@pytest.mark.skipif(not PINNED, reason="older versions of transformers cannot run LongRoPE without weights")
@pytest.mark.parametrize(
    ("prompts", "max_model_len", "factors"),
    [(SHORT_ROWS, BORDER, "short"), (LONG_ROWS, None, "long")],
    ids=["short", "long"],
)
def test_outputs_equal_generate(
    run_tiny: TinyRunner, prompts: list[list[int]], max_model_len: int | None, factors: str
) -> None:
    result = run_tiny(
        [{"ids": prompt} for prompt in prompts],
        model=longrope_model,
        input={"token_ids": "ids"},
        sampling={"max_tokens": MAX_TOKENS, "ignore_eos": True},
        output={"token_ids": True},
        engine={"max_model_len": max_model_len},
    )
    model, unused = longrope_model(), range(IM_END + 1, VOCAB_SIZE)
    assert result.column("completion_token_ids") == [generate(model, prompt, unused).token_ids for prompt in prompts]
    assert result.resolved["rope_factors"] == factors


def test_other_models_have_no_such_entry(run_tiny: TinyRunner) -> None:
    assert "rope_factors" not in run_tiny([{"prompt": "a"}]).resolved
