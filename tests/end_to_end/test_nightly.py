"""jobs/nightly.slurm with a stand-in for Slurm: interrupted once, queued again, finished."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import uniform_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "jobs" / "nightly.slurm"
BATCHGEN = f'exec {sys.executable} -m batchgen "$@"'


def start(job_file: Path, date: str = "2026-11-30", batchgen: str = BATCHGEN) -> subprocess.Popen[str]:
    """The script as Slurm starts it, with `batchgen` and `scontrol` of our own in front of PATH."""
    commands = job_file.parent / "bin"
    commands.mkdir(exist_ok=True)
    put(commands / "batchgen", batchgen)
    put(commands / "scontrol", f'echo "$@" >> {job_file.parent}/scontrol.log')
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "77",
        "DATE": date,
        "JOB": str(job_file),
    }
    return subprocess.Popen(
        ["bash", SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def put(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def requeued(job_file: Path) -> list[str]:
    log = job_file.parent / "scontrol.log"
    return log.read_text().splitlines() if log.exists() else []


def write(run_tiny: TinyRunner, num_rows: int, **job: Any) -> Path:
    sampling = {"temperature": 1, "max_tokens": 60, "ignore_eos": True, "seed": 3}
    rows = prompts(*(f"row {n}" for n in range(num_rows)))
    return run_tiny.write(rows, model=uniform_model, sampling=sampling, output={"path": "nightly/${DATE}"}, **job)


@pytest.mark.slow
def test_interrupted_once_it_is_queued_again_and_finishes(run_tiny: TinyRunner) -> None:
    job_file = write(run_tiny, 100, engine={"max_num_seqs": 4})
    folder = job_file.parent / "nightly" / "2026-11-30"
    first = start(job_file)
    deadline = time.monotonic() + 300
    while not (folder / ".state/run.json").exists():
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.terminate()
    _, errors = first.communicate(timeout=300)
    assert (first.returncode, requeued(job_file)) == (143, ["requeue 77"]), errors
    assert "run the same command again to continue" in errors
    second = start(job_file)
    output, errors = second.communicate(timeout=300)
    assert (second.returncode, requeued(job_file)) == (0, ["requeue 77"]), errors
    assert output.splitlines()[-1] == "ok=100 failed=0"
    assert (folder / "_SUCCESS").exists()


def test_failed_rows_are_reported_and_are_no_failure(tmp_path: Path) -> None:
    run = start(tmp_path / "job.yaml", batchgen="exit 3")
    _, errors = run.communicate(timeout=300)
    assert (run.returncode, requeued(tmp_path / "job.yaml")) == (0, [])
    assert "nightly 2026-11-30: finished, some rows failed" in errors


def test_a_refused_job_fails_and_is_not_queued_again(tmp_path: Path) -> None:
    run = start(tmp_path / "job.yaml", batchgen="exit 2")
    _, errors = run.communicate(timeout=300)
    assert (run.returncode, requeued(tmp_path / "job.yaml")) == (2, [])
    assert "nightly 2026-11-30: failed with exit code 2" in errors


def test_without_a_date_nothing_starts(tmp_path: Path) -> None:
    run = start(tmp_path / "job.yaml", date="", batchgen=f"touch {tmp_path}/started")
    _, errors = run.communicate(timeout=300)
    assert run.returncode != 0
    assert "DATE: is not set" in errors
    assert not (tmp_path / "started").exists()
