"""Every line on stderr of a run with --log-format json is an object with the keys of docs/logging.md."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from batchgen.job.generate import Generation
from batchgen.job.interrupt import Interrupted
from tests.end_to_end.harness import TinyRunner, cli_run, prompts

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


def test_failed_rows_are_named_ten_times_at_most(run_tiny: TinyRunner) -> None:
    lines = events(run_tiny.write([*prompts("note a"), *[{"prompt": None}] * 12]))
    assert names(lines).count("row_failed") == 10
