"""Runs that end before they are done: in a process that gets a signal, or in this one after a given row.

The processes are forked from one that imports torch and transformers once a session: that takes seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from batchgen.cli import main
from batchgen.io.output.writers import ResultWriter
from batchgen.job import run as run_room
from batchgen.job.results import Results
from batchgen.request_output import RequestOutput
from batchgen.stats import plots
from tests.end_to_end.harness import TinyRunner, prompts
from tests.object_store import install
from tests.tiny_models import uniform_model

pa.array([1])  # imports pandas, here rather than in every process
ROOT = Path(__file__).resolve().parents[2]
NUM_ROWS = 80
TOKENS = 80
FOUR_AT_ONCE = {"max_num_seqs": 4, "attention": "torch"}  # slow enough for a signal to arrive in time
MANY_AT_ONCE = ["engine.max_num_seqs=64"]  # for a run that is not interrupted; how many run at once changes no answer


def write_long_job(run_tiny: TinyRunner, *, num_rows: int = NUM_ROWS, tokens: int = TOKENS, **job: Any) -> Path:
    """Write a job that samples, so that an answer depends on its row's draws; every 40th row is bad."""
    rows = [{"prompt": None if n % 40 == 39 else f"row {n}"} for n in range(num_rows)]
    sampling = {"temperature": 1, "max_tokens": tokens, "ignore_eos": True, "seed": 3}
    return run_tiny.write(rows, model=uniform_model, sampling=sampling, **{"engine": FOUR_AT_ONCE, **job})


@dataclass(frozen=True)
class Session:
    """`batchgen run` in a process of its own."""

    process: ForkServerProcess
    output: Path

    @property
    def stderr(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def kill(self) -> None:
        self.process.kill()
        assert self.wait() == -signal.SIGKILL

    def send_signal(self, signum: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signum)

    def wait(self) -> int:
        """Return the exit code, or minus the number of the signal that killed it."""
        self.process.join(60)
        assert self.process.exitcode is not None, "the process does not end"
        return self.process.exitcode


def start(
    job_file: Path,
    *options: str,
    rows_per_chunk: int = 4,
    prepare: Callable[[], None] | None = None,
) -> Session:
    """Start a run with chunks so small that a short job has many commits; `prepare` is called first, over there.

    `options` of the command line; without any, --quiet.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "kernels")])):
        forkserver.ensure_running()
    output = job_file.with_suffix(".stderr")
    process = context.Process(target=_run, args=(job_file, options or ("--quiet",), output, rows_per_chunk, prepare))
    process.start()
    return Session(process, output)


def _run(
    job_file: Path,
    options: Sequence[str],
    output: Path,
    rows_per_chunk: int,
    prepare: Callable[[], None] | None,
) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    no_plots: Any = {name: lambda *_: plots.Plot("<svg></svg>", "<svg></svg>") for name in ("plot_blocks", "plot_rows")}
    small_chunks = partial(ResultWriter, rows_per_chunk=rows_per_chunk)
    with mock.patch.multiple(plots, **no_plots), mock.patch.object(run_room, "ResultWriter", small_chunks):
        main(["run", str(job_file), *options])


def die_at_put(store: Path, key: str) -> None:
    """Use the object store of a folder, and kill this process when a key that ends like this is to be put."""

    def check(put: str) -> None:
        if put.endswith(key):
            os.kill(os.getpid(), signal.SIGKILL)

    install(store, check)


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
    """From now on runs commit row by row and die after so many outputs; None: they no longer do."""
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
