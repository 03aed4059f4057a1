"""RunLock: which holders are refused by name, and whose lock is taken over."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.errors import OutputError
from batchgen.io.output.lock import SILENT_SECONDS, Holder, RunLock


def write_holder(path: Path, *, silent_seconds: float = 0, **changes: object) -> None:
    """Write the lock of this process with `changes`."""
    me = Holder.this_process()
    path.write_text(json.dumps({"pid": me.pid, "host": me.host, "started": me.started, **changes}))
    beat = path.stat().st_mtime - silent_seconds
    os.utime(path, (beat, beat))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_live_process_is_named(path: Path) -> None:
    write_holder(path, pid=os.getppid(), started=None if sys.platform != "linux" else started(os.getppid()))
    with pytest.raises(OutputError, match=f"process {os.getppid()} on {re.escape(Holder.this_process().host)}"):
        RunLock(path).acquire()
    assert [file.name for file in path.parent.iterdir()] == ["lock"]


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[]"])
def test_a_damaged_lock_is_taken_over(path: Path, text: str) -> None:
    path.write_text(text)
    RunLock(path).acquire()


def test_a_dead_process_of_this_host_is_replaced_at_once(path: Path) -> None:
    write_holder(path, pid=dead_pid())
    RunLock(path).acquire()
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_pid_that_is_used_again_is_not_the_old_process(path: Path) -> None:
    write_holder(path, started="1")
    RunLock(path).acquire()


def test_another_host_counts_as_dead_after_two_minutes_of_silence(path: Path) -> None:
    write_holder(path, host="elsewhere", silent_seconds=SILENT_SECONDS - 10)
    with pytest.raises(OutputError, match="on elsewhere is running"):
        RunLock(path).acquire()
    write_holder(path, host="elsewhere", silent_seconds=SILENT_SECONDS + 10)
    RunLock(path).acquire()


def test_release_removes_only_its_own_lock(path: Path) -> None:
    first = RunLock(path)
    first.acquire()
    RunLock(path).release()
    assert path.exists()
    first.release()
    assert list(path.parent.iterdir()) == []
