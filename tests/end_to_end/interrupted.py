"""Runs that end before they are done: in a process that gets a signal, or in this one behind a given row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchgen.job.results import Results
from batchgen.request_output import RequestOutput
from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import uniform_model

ROOT = Path(__file__).resolve().parents[2]
NUM_ROWS = 240
TOKENS = 120
# The command line with small chunks, so that a short job has many commits.
DRIVER = """
import functools, torch
import batchgen.job.run as room
torch.set_num_threads(1)
room.ResultWriter = functools.partial(room.ResultWriter, rows_per_chunk=4)
from batchgen.cli import main
main()
"""
SMALL = {"max_num_seqs": 4, "attention": "torch"}  # which compiles nothing in every process


def write_long_job(run_tiny: TinyRunner, *, num_rows: int = NUM_ROWS, tokens: int = TOKENS, **job: Any) -> Path:
    """Sampled, so that an answer depends on its row's draws; every 40th row is bad."""
    rows = [{"prompt": None if n % 40 == 39 else f"row {n}"} for n in range(num_rows)]
    sampling = {"temperature": 1, "max_tokens": tokens, "ignore_eos": True, "seed": 3}
    return run_tiny.write(rows, model=uniform_model, sampling=sampling, **{"engine": SMALL, **job})


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}


def command_line(job_file: Path) -> list[str]:
    return [sys.executable, "-c", DRIVER, "run", str(job_file), "--quiet"]


def start(job_file: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command_line(job_file), env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def wait_for_chunks(job_file: Path, number: int) -> None:
    """Until so many chunks of a run that has begun are committed, or the run is done."""
    folder, deadline = job_file.with_suffix(""), time.monotonic() + 60
    while not (folder / "_SUCCESS").exists() and not (
        (folder / ".state/run.json").exists() and len(chunks(folder)) >= number
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def chunks(folder: Path) -> list[Path]:
    return [*folder.glob(".state/journal/chunk-*")]


def num_committed(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in chunks(folder))


class Stop(BaseException):
    """Ends a run in this process as a kill would end it, but for the lock."""


def stop_after(monkeypatch: pytest.MonkeyPatch, num_rows: int | None) -> None:
    """From now on runs commit row by row and die behind so many outputs; None: they live."""
    monkeypatch.undo()
    if num_rows is None:
        return
    add, seen = Results.add, []

    def counted(self: Results, output: RequestOutput, num_samples: int) -> None:
        add(self, output, num_samples)
        seen.append(output)
        if len(seen) == num_rows:
            raise Stop

    monkeypatch.setattr(Results, "add", counted)


def stopped(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, num_rows: int = 3, **job: Any) -> Path:
    """The job file of a run that died after `num_rows` of its eight rows."""
    job = {"model": uniform_model, "sampling": {"temperature": 1}, "engine": {"max_num_seqs": 1}, **job}
    job_file = run_tiny.write(prompts(*(f"row {n}" for n in range(8))), **job)
    stop_after(monkeypatch, num_rows)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    return job_file


class Killed(BaseException):
    """Ends a run in this process as a kill would end it, but for the lock, which is given back."""


def killed(*_: object, **__: object) -> None:
    raise Killed
