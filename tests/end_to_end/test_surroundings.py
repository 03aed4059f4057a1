"""Ctrl-C while workers start, a full disk, file systems that lack something: no row is lost, and all is said once."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from batchgen.cli import main
from batchgen.io.output.atomic import _warn_of_no_fsync
from batchgen.prompts import tokenise, workers
from tests.end_to_end.harness import TinyRunner, answers, json_lines, prompts
from tests.end_to_end.interrupted import (
    MANY_AT_ONCE,
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
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [cause in warning for cause, warning in zip(causes, warnings, strict=True)] == [True] * 3


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
