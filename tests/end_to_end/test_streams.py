"""Losing stdout, stderr or the terminal loses no row, ends no run and changes no exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.end_to_end.harness import TinyRunner, answers, json_lines, prompts
from tests.end_to_end.interrupted import (
    FOUR_AT_ONCE,
    MANY_AT_ONCE,
    Session,
    start,
    wait_for_chunks,
)
from tests.tiny_models import uniform_model

STREAMS = {"stdout": [1], "stderr": [2], "both": [1, 2]}


class Case(NamedTuple):
    """Which streams are lost, and the format of the log."""

    streams: str = "both"
    log_format: str = "text"


ALL_CASES = [Case(*values) for values in product(STREAMS, ("text", "json"))]


def start_on(job_file: Path, case: Case, path: str | None, prepare: Callable[[], object] = int) -> Session:
    """Start a run whose streams are this file; None: closed."""
    attach = partial(attach_streams, STREAMS[case.streams], path, prepare)
    return start(job_file, "--log-format", case.log_format, prepare=attach)


def attach_streams(descriptors: Sequence[int], path: str | None, prepare: Callable[[], object]) -> None:
    """Give this process the streams that Python would give it if it were started with these descriptors."""
    prepare()
    for descriptor in descriptors:
        if path is None:
            os.close(descriptor)
            stream = None
        else:
            opened = os.open(path, os.O_WRONLY)
            os.dup2(opened, descriptor)
            os.close(opened)
            stream = open(descriptor, "w", closefd=False)  # noqa: SIM115
        setattr(sys, {1: "stdout", 2: "stderr"}[descriptor], stream)


def run_closed(job_file: Path, case: Case) -> Session:
    return start_on(job_file, case, None)


def run_full(job_file: Path, case: Case) -> Session:
    return start_on(job_file, case, "/dev/full")


def run_into_pipe(job_file: Path, case: Case) -> Session:
    """Start a run whose reader leaves after one line."""
    fifo = job_file.with_suffix(".fifo")
    os.mkfifo(fifo)
    session = start_on(job_file, case, str(fifo))
    with fifo.open() as reader:
        assert reader.readline()
    return session


def run_on_terminal(job_file: Path, case: Case) -> Session:
    """Start a run on a terminal, which is closed after the first committed rows: the kernel sends SIGHUP."""
    master, slave = os.openpty()
    threading.Thread(target=read_all, args=(master,), daemon=True).start()
    session = start_on(job_file, case, os.ttyname(slave), os.setsid)  # so that it becomes the controlling terminal
    wait_until_it_runs(job_file)
    os.close(slave)
    os.close(master)
    return session


def read_all(descriptor: int) -> None:
    with suppress(OSError):  # once it is closed
        while os.read(descriptor, 1 << 16):
            pass


def run_and_hang_up(job_file: Path, case: Case) -> Session:
    session = start(job_file, "--log-format", case.log_format)
    wait_until_it_runs(job_file)
    session.send_signal(signal.SIGHUP)
    return session


def wait_until_it_runs(job_file: Path) -> None:
    wait_for_chunks(job_file, 1)
    assert not (job_file.with_suffix("") / "_SUCCESS").exists()


Lose = Callable[[Path, Case], Session]
IN_TIME: list[Lose] = [run_on_terminal, run_and_hang_up]  # while the run has not ended
LOSSES: list[Lose] = [run_closed, run_full, run_into_pipe, *IN_TIME]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_run_outlives_its_streams(run_tiny: TinyRunner, lose: Lose) -> None:
    lose_and_compare(run_tiny, lose, [Case()], num_failed=0)


@pytest.mark.slow
@pytest.mark.parametrize("num_failed", [0, 1])
@pytest.mark.parametrize("lose", LOSSES)
def test_a_run_outlives_each_of_its_streams(run_tiny: TinyRunner, lose: Lose, num_failed: int) -> None:
    cases = ALL_CASES if lose is not run_and_hang_up else [Case("both", "text"), Case("both", "json")]
    lose_and_compare(run_tiny, lose, cases, num_failed)


def lose_and_compare(run_tiny: TinyRunner, lose: Lose, cases: Sequence[Case], num_failed: int) -> None:
    """Run the same job in all cases at once; each must end like a run that loses nothing."""
    rows = run_tiny.folder / "in.jsonl"
    rows.write_bytes(json_lines([*prompts(*(f"row {n}" for n in range(39))), *[{"prompt": None}] * num_failed]))
    tokens, engine = (24, FOUR_AT_ONCE) if lose in IN_TIME else (8, {"max_num_seqs": 40})
    sampling = {"temperature": 1, "max_tokens": tokens, "seed": 3}
    job_files = [run_tiny.write(rows, model=uniform_model, sampling=sampling, engine=engine) for _ in cases]
    uninterrupted = run_tiny.run_file(job_files[0], [f"output.path={run_tiny.folder / 'uninterrupted'}", *MANY_AT_ONCE])
    sessions = [lose(job_file, case) for job_file, case in zip(job_files, cases, strict=True)]
    exit_codes = {case: session.wait() for case, session in zip(cases, sessions, strict=True)}
    assert exit_codes == dict.fromkeys(cases, 3 if num_failed else 0)
    for job_file in job_files:
        folder = job_file.with_suffix("")
        assert (folder / "_SUCCESS").exists()
        assert answers(replace(uninterrupted, folder=folder)) == answers(uninterrupted)
