"""Every step of the GPU check runs with tiny shapes, without install and without a GPU; none of it is a measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check import Step, run_steps

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_dry_run_walks_through_every_step() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    command = [sys.executable, "scripts/gpu_check.py", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert len(document["steps"]) == 15
    assert all(step["figures"] for step in document["steps"])


def test_a_failure_is_a_result_and_the_others_go_on() -> None:
    def fail(_: float) -> dict[str, Any]:
        raise ValueError("no such kernel")

    steps = [Step("first", 1, fail), Step("second", 1, lambda seconds: {"given": seconds})]
    first, second = run_steps(steps, budget=10)
    assert first.error == "ValueError: no such kernel"
    assert second.figures == {"given": 1}


def test_a_step_that_would_pass_the_budget_is_skipped() -> None:
    long, short = run_steps([Step("long", 20, lambda _: {"ran": True}), Step("short", 1, lambda _: {"ran": True})], 10)
    assert long.skipped == "takes up to 20 s and 10 s are left"
    assert short.figures == {"ran": True}
