"""Faults of the device in a whole job: what is kept, what is said, and that the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from batchgen.engine.runner import LaunchedStep, ModelRunner
from batchgen.engine.step import SchedulerOutput
from tests.end_to_end.harness import TinyRunner, prompts

LETTERS = "abcdefgh"


def no_memory_for(monkeypatch: pytest.MonkeyPatch, is_too_large: Callable[[SchedulerOutput], bool]) -> None:
    """Forwards of such steps end as torch ends them when a GPU is full."""
    launch = ModelRunner._launch

    def limited(self: ModelRunner, step: SchedulerOutput) -> LaunchedStep:
        if is_too_large(step):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return launch(self, step)

    monkeypatch.setattr(ModelRunner, "_launch", limited)


def test_a_device_out_of_memory_changes_no_answer(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_memory_for(monkeypatch, lambda step: step.num_tokens > 10)
    with caplog.at_level("WARNING", "batchgen"):
        result = run_tiny(prompts(*(f"note {letter}" for letter in LETTERS)))
    assert (result.exit_code, result.completions) == (0, list(LETTERS.upper()))
    assert ["ran out of memory" in record.message for record in caplog.records] == [True]


def test_a_device_that_stays_full_ends_the_run_with_its_rows_kept(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = run_tiny.write(prompts(*(f"note {letter}" for letter in LETTERS)), engine={"max_num_seqs": 1})
    calls = count(1)
    no_memory_for(monkeypatch, lambda _: next(calls) > 6)
    result = run_tiny.run_file(job_file)
    assert result.exit_code == 2
    assert "no memory left for a step of a single token; finished rows are kept" in result.error
    monkeypatch.undo()
    result = run_tiny.run_file(job_file)
    assert (result.exit_code, result.completions) == (0, list(LETTERS.upper()))
    assert result.report["num_resumed_rows"] == 3
