"""The kernels compile for every GPU architecture without one, and do not spill on sm_90."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def compile_kernels(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own: this one may have declared the kernels for the interpreter."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    command = [sys.executable, "-m", "scripts.gpu.compile_kernels", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_every_kernel_compiles_for_every_architecture_and_spills_nothing_on_sm_90() -> None:
    done = compile_kernels()
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert [row[0] for row in rows if arch in row] == [
            "store",
            "merge",
            "uniform",
            "sample",
            "decode",
            "shared",
            "prefill",
        ]


def test_a_kernel_over_the_bound_fails() -> None:
    done = compile_kernels("--arch", "sm_90", "--max-spill", "-1")
    assert done.returncode == 1
    assert "7 kernels spill more than -1 bytes a thread on sm_90" in done.stderr
