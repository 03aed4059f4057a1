"""Every line on stderr of a run with --log-format json is an object with the keys of docs/logging.md."""

from __future__ import annotations

import json
import re
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from batchgen.job.generate import Generation
from batchgen.job.interrupt import Interrupted
from batchgen.models.load import load_weights
from tests.end_to_end.harness import TinyRunner, cli_run, prompts
from tests.end_to_end.interrupted import start

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "logging.md").read_text(encoding="utf-8")
KEYS = {
    name: {"time", "level", "event", "message", *re.findall(r"`(\w+)`", keys)}
    for name, keys in re.findall(r"^\| `(\w+)` \|([^|]*)\|[^|]*\|$", DOCS, re.MULTILINE)
}


def events(job_file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in cli_run(job_file, "--log-format", "json").stderr.splitlines()]
    for line in lines:
        assert set(line) == KEYS[line["event"]], line
    return lines


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines if line["event"] != "message"]


def test_a_run_that_finishes(run_tiny: TinyRunner) -> None:
    lines = events(run_tiny.write([*prompts("note a"), {"prompt": None}]))
    assert names(lines) == [
        "job_started",
        "model_inspected",
        "row_failed",
        "input_read",
        "plan",
        "weights_loaded",
        "first_token",
        "committed",
        "finished",
    ]
    assert (lines[-1]["ok"], lines[-1]["failed"], lines[-1]["exit_code"]) == (1, 1, 3)


def test_a_run_that_was_complete_already(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(prompts("note a"))
    events(job_file)
    lines = events(job_file)
    assert (names(lines), lines[-1]["exit_code"]) == (["job_started", "model_inspected", "finished"], 0)


def test_a_run_that_is_refused(run_tiny: TinyRunner) -> None:
    lines = events(run_tiny.write(prompts("note a"), input={"prompt": "question"}))
    assert (names(lines)[-1], lines[-1]["level"], lines[-1]["exit_code"]) == ("error", "error", 2)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, signum: int, code: int
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted(signum)

    monkeypatch.setattr(Generation, "run", interrupted)
    lines = events(run_tiny.write(prompts("note a")))
    assert (names(lines)[-1], lines[-1]["exit_code"]) == ("interrupted", code)


def test_a_bug(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generation, "run", lambda *_, **__: 1 / 0)
    lines = events(run_tiny.write(prompts("note a")))
    assert (names(lines)[-1], lines[-1]["exit_code"]) == ("error", 1)
    assert "ZeroDivisionError" in lines[-1]["message"]


@pytest.fixture
def job_with_unused_tensors(run_tiny: TinyRunner, tmp_path: Path) -> Path:
    """A job on a checkpoint that transformers reports: one of its tensors belongs to no layer."""
    source = Path(run_tiny(prompts("note a")).resolved["job"]["model"]["path"])
    model = tmp_path / "with-unused"
    shutil.copytree(source, model)
    tensors = {**load_file(model / "model.safetensors"), "extra.weight": torch.zeros(1)}
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    return run_tiny.write(prompts("note a"), model=model)


@pytest.mark.slow
def test_quiet_is_quiet(job_with_unused_tensors: Path) -> None:
    session = start(job_with_unused_tensors, "--quiet")
    assert (session.wait(), session.stderr) == (0, "")


def library_warns() -> None:
    """Let a library and Python warn while the model is loaded."""

    def load_and_warn(*arguments: Any) -> PreTrainedModel:
        transformers_logging.get_logger("transformers.models").warning("a library warns")
        warnings.warn("so does Python", stacklevel=1)
        return load_weights(*arguments)

    mock.patch("batchgen.job.generate.load_weights", load_and_warn).start()


@pytest.mark.slow
def test_what_libraries_warn_of_is_json_too(job_with_unused_tensors: Path) -> None:
    session = start(job_with_unused_tensors, "--log-format", "json", prepare=library_warns)
    assert session.wait() == 0
    messages = [json.loads(line)["message"] for line in session.stderr.splitlines()]
    assert "1 tensors of the checkpoint are not used, among them extra.weight" in messages
    assert "a library warns" in messages
    assert sum("UserWarning: so does Python" in message for message in messages) == 1


def test_failed_rows_are_named_ten_times_at_most(run_tiny: TinyRunner) -> None:
    lines = events(run_tiny.write([*prompts("note a"), *[{"prompt": None}] * 12]))
    assert names(lines).count("row_failed") == 10
