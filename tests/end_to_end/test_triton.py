"""`engine.attention: triton` in a whole job, in Triton's interpreter."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import context_model


@pytest.mark.slow
def test_whole_job_equals_the_plain_attention(run_tiny: TinyRunner) -> None:
    rows = prompts("the beginning that they share, and a", "the beginning that they share, and b", "alone")
    triton, plain = (
        run_tiny(rows, model=context_model, sampling={"max_tokens": 4}, engine={"attention": attention})
        for attention in ("triton", "torch")
    )
    assert triton.completions == plain.completions
    assert triton.column("cached_tokens") == plain.column("cached_tokens")
    assert triton.resolved["job"]["engine"]["attention"] == "triton"


def test_without_a_gpu_it_is_refused(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    result = run_tiny(prompts("a"), engine={"attention": "triton"})
    assert result.exit_code == 2
    assert "engine.attention: triton runs on a GPU; use auto or cpu here" in result.error


def test_the_interpreter_does_not_get_bfloat16(run_tiny: TinyRunner) -> None:
    job = run_tiny.write(prompts("a"), engine={"attention": "triton"})
    result = run_tiny.run_file(job, ["model.dtype=bfloat16"])
    assert result.exit_code == 2
    assert "computed wrongly in bfloat16 by Triton's interpreter; set model.dtype: float32" in result.error


def wide_model() -> PreTrainedModel:
    return context_model(head_dim=264, heads=1, kv_heads=1)


def test_heads_wider_than_the_launch_table_are_refused(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("a"), model=wide_model, engine={"attention": "triton"})
    assert result.exit_code == 2
    assert "heads of up to 256, and this model's are 264 wide" in result.error
