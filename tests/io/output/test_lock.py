"""RunLock: which holders are refused by name, whose lock is taken over, and that one run wins, on every file system."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import OutputError
from batchgen.io.output import lock as lock_module
from batchgen.io.output.holder import SILENT_SECONDS, Holder
from batchgen.io.output.lock import RunLock

ROOT = Path(__file__).parents[3]
MakeLock = Callable[[Path], RunLock]
NO_FLOCK = ["ENOSYS", "ENOLCK", "ENOTSUP", "EOPNOTSUPP", "EINVAL", "EBADF"]


def write_lock(path: Path, *, silent_seconds: float = 0, **changes: object) -> None:
    """Write the lock of this process with `changes`."""
    path.write_text(json.dumps({"holder": {**asdict(Holder.this_process()), **changes}, "token": "theirs"}))
    beat = path.stat().st_mtime - silent_seconds
    os.utime(path, (beat, beat))


def write_dead_lock(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_lock(path, pid=process.pid)


def write_silent_lock(path: Path, silent_seconds: float = SILENT_SECONDS + 10) -> None:
    write_lock(path, host="elsewhere", silent_seconds=silent_seconds)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "out/.state").mkdir(parents=True)
    return tmp_path / "out/.state/lock"


@pytest.fixture(params=["flock", "no flock", "file", "no links"])
def make_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeLock:
    """Make locks in every way in which one can be taken."""
    if request.param == "no flock":
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    if request.param == "no links":
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    return lambda path: RunLock(path, "auto" if "flock" in request.param else "file")


# Whose lock it is


def test_a_live_process_is_named_and_nothing_is_left(path: Path, make_lock: MakeLock) -> None:
    first = make_lock(path)
    first.acquire()
    assert make_lock(path).live_holder() == Holder.this_process()
    with pytest.raises(
        OutputError, match=rf"out: process {os.getpid()} on {re.escape(os.uname().nodename)} is running"
    ):
        make_lock(path).acquire()
    assert os.listdir(path.parent) == ["lock"]
    first.release()
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("write", [write_dead_lock, write_silent_lock])
def test_a_dead_process_and_a_silent_host_are_replaced(
    path: Path, make_lock: MakeLock, write: Callable[[Path], None]
) -> None:
    write(path)
    lock = make_lock(path)
    assert lock.live_holder() is None
    lock.acquire()
    assert lock.live_holder() == Holder.this_process()
    assert os.listdir(path.parent) == ["lock"]


@pytest.mark.parametrize("text", ["", "{", '{"holder": {"pid": 1}}', "[]", '{"holder": 1}'])
def test_a_damaged_lock_is_taken_over(path: Path, make_lock: MakeLock, text: str) -> None:
    path.write_text(text)
    make_lock(path).acquire()


def test_the_run_that_loses_its_lock_notices_and_leaves_the_new_one(path: Path, make_lock: MakeLock) -> None:
    first, second = make_lock(path), make_lock(path)
    first.acquire()
    write_silent_lock(path)
    second.acquire()
    second.check()
    with pytest.raises(OutputError, match="another run has taken over this folder"):
        first.check()
    first.release()
    second.check()
    second.release()
    assert os.listdir(path.parent) == []


def test_heartbeats_renew_the_lock_until_another_run_has_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_SECONDS", 0.01)
    lock = RunLock(path)
    lock.acquire()
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 10
    while path.stat().st_mtime < 2:
        assert time.monotonic() < deadline
    write_lock(path)
    os.utime(path, (1, 1))
    time.sleep(0.1)
    assert path.stat().st_mtime == 1
    lock.release()


def test_another_host_with_a_recent_heartbeat_keeps_it(path: Path, make_lock: MakeLock) -> None:
    write_silent_lock(path, SILENT_SECONDS - 10)
    with pytest.raises(OutputError, match="on elsewhere is running"):
        make_lock(path).acquire()


# Which way it is taken


@pytest.mark.parametrize("name", NO_FLOCK)
def test_without_flock_a_warning_says_so_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(getattr(errno, name)))
    lock = RunLock(path)
    lock.acquire()
    lock.check()
    lock.release()
    [record] = [each for each in caplog.records if each.name == "batchgen"]
    assert (record.levelname, record.name) == ("WARNING", "batchgen")
    assert f"the file system has no locks (flock: {os.strerror(getattr(errno, name))})" in record.message


def test_without_fcntl_a_warning_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    RunLock(path).acquire()
    assert "this platform has no flock" in caplog.text


def test_a_failing_disk_is_no_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        RunLock(path).acquire()


def test_file_asks_for_no_flock(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    RunLock(path, "file").acquire()
    assert caplog.records == []


def test_off_refuses_nobody_but_names_itself(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = RunLock(path, "off"), RunLock(path, "off")
    with caplog.at_level("INFO", "batchgen"):
        first.acquire()
        assert [record.message for record in caplog.records] == [
            f"output.lock is off: nothing keeps other runs out of {path.parent.parent}"
        ]
        second.acquire()
        assert caplog.messages[-1] == f"{Holder.this_process()} is running in this folder too"
    first.check()
    assert RunLock(path).live_holder() == Holder.this_process()
    with pytest.raises(OutputError, match="is running in this folder; wait for it"):
        RunLock(path).acquire()
    first.release()
    assert path.exists()
    second.release()
    assert not path.exists()


def test_a_guard_file_is_waited_for_and_removed_after_two_minutes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_GUARD_SECONDS", 0.1)
    guard = path.with_name(".lock.guard")
    guard.touch()
    with pytest.raises(OutputError, match="another run is just starting in this folder"):
        RunLock(path, "file").acquire()
    now = guard.stat().st_mtime
    os.utime(guard, (now - SILENT_SECONDS - 10,) * 2)
    RunLock(path, "file").acquire()
    assert os.listdir(path.parent) == ["lock"]


# Runs that start at once


@pytest.mark.parametrize("write", [None, write_dead_lock, write_silent_lock])
def test_of_threads_that_start_at_once_one_wins(
    path: Path, make_lock: MakeLock, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None] | None
) -> None:
    """Each pauses between finding the lock of a dead process and replacing it."""
    refuse = RunLock._refuse

    def refuse_and_pause(lock: RunLock, holder: Holder | None) -> None:
        refuse(lock, holder)
        time.sleep(0.01)

    monkeypatch.setattr(RunLock, "_refuse", refuse_and_pause)
    for number in range(3):
        folder = path.parent / str(number)
        folder.mkdir()
        if write is not None:
            write(folder / "lock")
        assert race([make_lock(folder / "lock") for _ in range(6)]) == 1


def race(locks: list[RunLock]) -> int:
    """Acquire all locks at once; return how many succeeded, each of which must still be held."""
    barrier = threading.Barrier(len(locks))
    won: list[RunLock] = []

    def acquire(lock: RunLock) -> None:
        barrier.wait()
        try:
            lock.acquire()
        except OutputError:
            return
        won.append(lock)

    threads = [threading.Thread(target=acquire, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(lock.is_lost() for lock in won)
    return len(won)


RACER = """
import os, sys, time
from pathlib import Path
from batchgen.errors import OutputError
from batchgen.io.output.lock import RunLock
mode, *paths = sys.argv[1:]
print("ready", flush=True)
input()
for path in paths:
    try:
        RunLock(Path(path), mode).acquire()
        print(path, end=" ")
    except OutputError:
        pass
print(flush=True)
input()  # holds what it won until the others are done
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "file"])
def test_of_processes_that_start_at_once_one_wins(tmp_path: Path, mode: str) -> None:
    paths = [tmp_path / str(number) / "lock" for number in range(40)]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        if number % 2:
            write_silent_lock(path)
    command, pipe = [sys.executable, "-c", RACER, mode, *map(str, paths)], subprocess.PIPE
    processes = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    assert [line(process) for process in processes] == [["ready"]] * 4
    for process in processes:
        tell(process)
    won = [line(process) for process in processes]
    for process in processes:
        tell(process)
        assert process.wait() == 0
    assert sorted(path for paths in won for path in paths) == sorted(map(str, paths))


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
