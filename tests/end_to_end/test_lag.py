"""Results one step late: a job gives what it gives without, whatever its rows ask for."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.engine.runner import ModelRunner
from tests.end_to_end.harness import TinyRunner
from tests.tiny_models import context_model

LATE: list[dict[str, Any]] = [
    {},
    {"n": 3, "temperature": 1.0, "top_p": 0.9},
    {"stop_token_ids": list(range(128)), "temperature": 1.5},
    {"stop": ["e", "a"], "min_tokens": 5, "max_tokens": 9, "temperature": 1.5},
    {"max_tokens": 1},
]
MANY_AT_ONCE: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"bad_words": ["ab", "e"], "temperature": 1.0},
    {"structured": {"regex": "[a-c]{2,5}"}, "n": 2, "temperature": 1.0},
]
COLUMNS = ["completion", "finish_reason", "error", "prompt_tokens", "completion_tokens", "sample_index"]


@pytest.mark.parametrize("own", [LATE, LATE + MANY_AT_ONCE], ids=["late", "mixed"])
@pytest.mark.parametrize("engine", [{}, {"num_blocks": 12, "expected_tokens": 1}], ids=["room", "preempted"])
def test_the_same_comes_out_of_a_job(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, engine: dict[str, int], own: list[dict[str, Any]]
) -> None:
    rows = [{"prompt": f"a shared beginning, and then {number}", "own": each} for number, each in enumerate(3 * own)]

    def run() -> tuple[list[list[Any]], dict[str, Any]]:
        sampling = {"seed": 3, "max_tokens": 24}
        result = run_tiny(rows, model=context_model, input={"sampling": "own"}, engine=engine, sampling=sampling)
        assert (result.error, result.exit_code) == ("", 0)
        return [result.column(name) for name in COLUMNS], result.report

    on_time, report_on_time = run()
    init = ModelRunner.__init__

    def lagging(runner: ModelRunner, *given: Any, **keywords: Any) -> None:
        init(runner, *given, **keywords)
        runner.lag = 1

    monkeypatch.setattr(ModelRunner, "__init__", lagging)
    late, report = run()
    assert late == on_time
    assert report["num_output_tokens"] == report_on_time["num_output_tokens"]
    assert (report["num_overrun_tokens"] > 0, report_on_time["num_overrun_tokens"]) == (own is LATE, 0)
    assert (report["num_preemptions"] > 0) == bool(engine)
