"""`engine.attention: triton` in a whole job, in Triton's interpreter."""

from __future__ import annotations

import pytest

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
