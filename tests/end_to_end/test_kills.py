"""A run that is ended at any instant, by any failing write or by a signal continues where it stopped."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchgen.io.output.writers import ResultWriter
from batchgen.job import run as run_room
from batchgen.plan.token_store import TokenStore
from tests.end_to_end.harness import TinyRunner, answers, prompts
from tests.end_to_end.interrupted import (
    MANY_AT_ONCE,
    NUM_ROWS,
    Stop,
    chunks,
    num_committed,
    start,
    wait_for_chunks,
    write_long_job,
)
from tests.tiny_models import uniform_model

pytestmark = pytest.mark.slow


def test_killed_at_random_instants_it_ends_as_an_unbroken_run(run_tiny: TinyRunner) -> None:
    kill_and_compare(run_tiny, int(os.environ.get("BATCHGEN_KILLS", "6")))


def kill_and_compare(run_tiny: TinyRunner, num_kills: int) -> None:
    """Kill a job of 400 rows at so many instants, and hold what it becomes against an unbroken run of it."""
    tokens = max(24, 4 * num_kills)  # the more kills, the longer the job
    job_file = write_long_job(run_tiny, num_rows=400, tokens=tokens)
    folder, instants, num_generated = job_file.with_suffix(""), random.Random(1), 0
    uninterrupted = run_tiny.run_file(job_file, [f"output.path={run_tiny.folder / 'uninterrupted'}", *MANY_AT_ONCE])
    for _ in range(num_kills):
        committed = num_committed(folder)
        session = start(job_file)
        wait_for_chunks(job_file, 1 + len(chunks(folder)))
        time.sleep(instants.random() * 0.1)
        session.kill()
        num_generated += num_committed(folder) - committed
        rows = [row for path in chunks(folder) for row in pq.read_table(path)["row_index"].to_pylist()]
        assert len(rows) == len({*rows})  # a committed row is not generated again
    assert num_generated == num_committed(folder)
    result = run_tiny.run_file(job_file, MANY_AT_ONCE)
    assert result.exit_code == 3
    assert answers(result) == answers(uninterrupted)
    assert (result.report["num_rows"], result.report["num_failed"]) == (400, 10)
    assert result.report["num_resumed_rows"] == num_generated
    assert not (folder / ".state").exists()


def fail_from(patch: pytest.MonkeyPatch, number: int, error: Callable[[], BaseException]) -> list[int]:
    """From now on every write, fsync and rename from this number on fails; the list grows with each. 0: none fails.

    A kill leaves no later one, and a full disk stays full.
    """
    calls: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(number)
            if 0 < number <= len(calls):
                raise error()
            return function(*arguments, **options)

        return call

    patch.setattr(os, "fsync", counted(os.fsync))
    for holder, name in [
        (Path, "replace"),
        (Path, "write_text"),
        (pq.ParquetWriter, "write_batch"),
        (pq.ParquetWriter, "write_table"),
        (TokenStore, "_write"),
    ]:
        patch.setattr(holder, name, counted(getattr(holder, name)))
    patch.setattr(run_room, "ResultWriter", partial(ResultWriter, rows_per_chunk=3))
    patch.setattr(run_room, "render_page", lambda artifact: "page")  # drawing it would take most of the time
    return calls


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [Stop, disk_full])
def test_stopped_at_any_write_fsync_or_rename_it_ends_as_an_unbroken_run(
    run_tiny: TinyRunner, error: Callable[[], BaseException]
) -> None:
    sampling = {"temperature": 1, "seed": 3}
    rows = [*prompts(*(f"row {n}" for n in range(7))), {"prompt": None}]
    job_file = run_tiny.write(rows, model=uniform_model, sampling=sampling)
    with pytest.MonkeyPatch.context() as patch:
        calls = fail_from(patch, 0, error)
        uninterrupted = run_tiny.run_file(job_file)
        num_calls = len(calls)
    assert num_calls > 40
    exit_codes = []
    for number in range(1, num_calls + 1):
        override = f"output.path={run_tiny.folder / str(number)}"
        with pytest.MonkeyPatch.context() as patch:
            fail_from(patch, number, error)
            if error is Stop:
                with pytest.raises(Stop):
                    run_tiny.run_file(job_file, [override])
            else:
                result = run_tiny.run_file(job_file, [override])
                exit_codes.append(result.exit_code)
                assert "No space left on device" in result.error
        with pytest.MonkeyPatch.context() as patch:
            fail_from(patch, 0, error)
            result = run_tiny.run_file(job_file, [override])
        assert (number, result.exit_code, result.error) == (number, 3, "")
        assert answers(result) == answers(uninterrupted)
        assert (result.report["num_ok"], result.report["num_failed"]) == (7, 1)
    if error is disk_full:  # refused before generating, and stopped after it had begun
        assert exit_codes == sorted(exit_codes)
        assert set(exit_codes) == {2, 4}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_commits_and_the_same_command_continues(run_tiny: TinyRunner, signum: int, code: int) -> None:
    """SIGTERM is what `timeout`, a scheduler or a container that is stopped sends."""
    job_file = write_long_job(run_tiny)
    session = start(job_file)
    wait_for_chunks(job_file, 2)
    begin = time.monotonic()
    session.send_signal(signum)
    assert session.wait() == code, session.stderr
    assert time.monotonic() - begin < 10
    assert session.stderr.splitlines()[-1].endswith("run the same command again to continue")
    assert "Traceback" not in session.stderr
    assert not (job_file.with_suffix("") / ".state/lock").exists()
    result = run_tiny.run_file(job_file, MANY_AT_ONCE)
    assert result.report["num_resumed_rows"] >= 8
    assert len(result.rows) == NUM_ROWS


def test_second_run_at_once_is_refused_and_works_after_a_kill(run_tiny: TinyRunner) -> None:
    job_file = write_long_job(run_tiny)
    session = start(job_file)
    wait_for_chunks(job_file, 2)
    refused = run_tiny.run_file(job_file)
    session.kill()
    assert refused.exit_code == 2
    assert f"process {session.process.pid} on " in refused.error
    assert run_tiny.run_file(job_file, MANY_AT_ONCE).report["num_resumed_rows"] > 0
