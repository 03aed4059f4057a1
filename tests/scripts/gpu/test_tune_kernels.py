"""The script that writes the launch table runs through all of its work without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def tune_kernels(*options: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "kernels")}
    command = [sys.executable, "-m", "scripts.gpu.tune_kernels", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tuning_walks_through_every_regime_and_writes_nothing() -> None:
    table = ROOT / "kernels/batchgen_kernels/triton/launch_table.json"
    before = table.read_bytes()
    assert len(tune_kernels("--dry-run", "--head-size", "16").splitlines()) == 3
    assert table.read_bytes() == before
