"""What surrounds a run and may fail: its terminal and streams, its disk, its file system. No row is lost to any."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from click.testing import CliRunner

from batchgen.cli import main
from batchgen.io.output.folder import _warn_of_no_fsync
from batchgen.prompts import tokenise, workers
from tests.end_to_end.harness import TinyRunner, answers, json_lines, prompts
from tests.end_to_end.interrupted import (
    FOUR_AT_ONCE,
    MANY_AT_ONCE,
    Session,
    Stop,
    chunks,
    num_committed,
    start,
    stop_after,
    stopped,
    wait_for_chunks,
    write_long_job,
)
from tests.tiny_models import uniform_model

# Lost streams

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


# Ctrl-C while worker processes start


def own_group_with_workers() -> None:
    """Let workers tokenise from the second batch on; what signals this process group reaches them too."""
    os.setpgid(0, 0)
    encode = partial(workers.encode_in_order, num_workers=2, tokens_before_workers=0)
    mock.patch.object(tokenise, "encode_in_order", encode).start()


def interrupt_workers(run_tiny: TinyRunner, delays: Sequence[float]) -> None:
    """Send SIGINT to a run and its workers so long after the first of them was started."""
    rows = run_tiny.folder / "in.jsonl"
    rows.write_bytes(json_lines(prompts(*(f"row {n}" for n in range(20_000)))))
    for delay in delays:
        session = start(run_tiny.write(rows), prepare=own_group_with_workers)
        pid = session.process.pid
        assert pid is not None
        deadline = time.monotonic() + 60
        while not children(pid):
            assert time.monotonic() < deadline
            assert session.process.is_alive()
            time.sleep(0.002)
        time.sleep(delay)
        os.killpg(pid, signal.SIGINT)
        assert session.wait() == 130
        [line] = session.stderr.splitlines()
        assert line.endswith("interrupted by SIGINT; run the same command again to continue")
        assert not (session.output.with_suffix("") / ".state").exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_ctrl_c_while_workers_start_prints_one_line(run_tiny: TinyRunner) -> None:
    interrupt_workers(run_tiny, [0.1])


@pytest.mark.slow
def test_ctrl_c_at_any_instant_of_the_start_of_workers_prints_one_line(run_tiny: TinyRunner) -> None:
    interrupt_workers(run_tiny, [0, 0.02, 0.05, 0.2, 0.4, 0.8])


# A full disk


def limit_files(num_bytes: int) -> None:
    """Let no file of this process grow beyond this size, as on a disk that is full from then on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("num_bytes", "exit_code", "num_kept"),
    [
        pytest.param(160, 2, 0, id="lock", marks=pytest.mark.slow),
        pytest.param(3_000, 2, 0, id="prompts", marks=pytest.mark.slow),
        pytest.param(30_000, 4, 40, id="part"),
    ],
)
def test_a_full_disk_loses_no_row(run_tiny: TinyRunner, num_bytes: int, exit_code: int, num_kept: int) -> None:
    """The lock takes about 200 bytes, token ids 5 kB, a chunk of four rows less than 10 kB, the part over 80 kB."""
    rows = [{"prompt": f"row {n} {'x' * 20}", "carried": random.Random(n).randbytes(2_000).hex()} for n in range(40)]
    job_file = run_tiny.write(rows, model=uniform_model, sampling={"temperature": 1, "seed": 3})
    session = start(job_file, prepare=partial(limit_files, num_bytes))
    assert session.wait() == exit_code
    assert "cannot be written: " in session.stderr  # which may be cut off here too
    assert ("run the same command again to continue" in session.stderr) == (exit_code == 4)
    assert num_committed(job_file.with_suffix("")) == num_kept
    result = run_tiny.run_file(job_file)
    assert (result.exit_code, result.report["num_resumed_rows"]) == (0, num_kept)
    assert answers(result) == answers(run_tiny.run_file(job_file, [f"output.path={run_tiny.folder / 'other'}"]))


# File systems


def fail_as(name: str) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    return fail


def without_flock() -> None:
    fcntl.flock = fail_as("ENOLCK")


def test_a_file_system_without_flock_fsync_and_links_is_warned_of_once(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_no_fsync.cache_clear()
    monkeypatch.setattr(fcntl, "flock", fail_as("ENOSYS"))
    monkeypatch.setattr(os, "fsync", fail_as("EINVAL"))
    monkeypatch.setattr(os, "link", fail_as("EPERM"))
    result = run_tiny(prompts("note a", "note b"))
    assert (result.exit_code, result.completions) == (0, ["A", "B"])
    assert not (result.folder / ".state").exists()
    causes = ("has no locks (flock: ", "cannot flush files to the disk", "cannot flush folders to the disk")
    assert [cause in message for cause, message in zip(causes, caplog.messages, strict=True)] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("lock", "prepare"), [("auto", without_flock), ("file", None), ("off", None)])
def test_a_run_is_seen_and_keeps_others_out_in_every_way(
    run_tiny: TinyRunner, lock: str, prepare: Callable[[], None] | None
) -> None:
    job_file = write_long_job(run_tiny, output={"lock": lock})
    session = start(job_file, prepare=prepare)
    wait_for_chunks(job_file, 2)
    status = CliRunner().invoke(main, ["status", str(job_file.with_suffix(""))])
    assert f"running: process {session.process.pid} on {socket.gethostname()}" in status.stdout
    refused = run_tiny.run_file(job_file, ["output.lock=file"])
    assert refused.exit_code == 2
    assert f"process {session.process.pid} on " in refused.error
    session.kill()
    assert run_tiny.run_file(job_file, MANY_AT_ONCE).report["num_resumed_rows"] > 0


def test_the_lock_may_change_between_sessions(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch, 3)
    assert run_tiny.run_file(job_file, ["output.lock=off"]).report["num_resumed_rows"] == 3


def test_a_chunk_that_a_power_loss_damaged_is_named_and_can_be_removed(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = stopped(run_tiny, monkeypatch, 2, sampling={"temperature": 1, "seed": 3})
    stop_after(monkeypatch, 3)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    newest = max(chunks(job_file.with_suffix("")))
    newest.write_bytes(b"")
    error = run_tiny.run_file(job_file).error
    assert error.startswith(f"{newest}: cannot be read")
    assert "remove it and newer chunks" in error
    newest.unlink()
    result = run_tiny.run_file(job_file)
    assert result.report["num_resumed_rows"] == 2
    assert answers(result) == answers(run_tiny.run_file(job_file, [f"output.path={run_tiny.folder / 'other'}"]))
