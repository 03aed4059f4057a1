"""RemoteLock: who gets it, from whom it is taken over, and that the previous holder detects that."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from batchgen.errors import OutputError
from batchgen.io.output import lock as lock_module
from batchgen.io.output.holder import Holder
from batchgen.io.output.remote_lock import RemoteLock
from batchgen.io.remote import RemotePath


@pytest.fixture
def path(store: RemotePath) -> RemotePath:
    return store / "out" / ".state" / "lock"


def write_lock(path: RemotePath, *, host: str = "elsewhere", silent_seconds: float = 0.0) -> None:
    values: dict[str, Any] = {"holder": {"pid": os.getpid(), "host": host, "started": None}, "token": "theirs"}
    path.write_bytes(json.dumps({**values, "beat": time.time() - silent_seconds}).encode())


def test_second_is_refused_by_process(path: RemotePath) -> None:
    first, second = RemoteLock(path), RemoteLock(path)
    first.acquire()
    with pytest.raises(OutputError, match=rf"bucket/out: process {os.getpid()} on .* is running in this folder"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    assert not path.exists()


def test_another_host_with_a_recent_heartbeat_keeps_it(path: RemotePath) -> None:
    write_lock(path, silent_seconds=110)
    with pytest.raises(OutputError, match=r"process \d+ on elsewhere is running"):
        RemoteLock(path).acquire()


def test_a_silent_host_loses_it_and_check_detects_that(path: RemotePath) -> None:
    first, second = RemoteLock(path), RemoteLock(path)
    first.acquire()
    write_lock(path, silent_seconds=130)
    second.acquire()
    second.check()
    with pytest.raises(OutputError, match="another run has taken over this folder"):
        first.check()
    first.release()  # leaves the lock of the second
    second.check()
    second.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"holder": {}}'])
def test_a_damaged_lock_is_taken_over(path: RemotePath, content: bytes) -> None:
    path.write_bytes(content)
    lock = RemoteLock(path)
    assert lock.live_holder() is None
    lock.acquire()
    lock.release()


def test_off_refuses_nobody_but_names_itself(path: RemotePath) -> None:
    write_lock(path)
    lock = RemoteLock(path, "off")
    lock.acquire()
    assert lock.live_holder() == Holder.this_process()
    write_lock(path)
    lock.check()
    lock.release()
    assert path.exists()


def test_a_store_that_fails_ends_the_run_without_a_traceback(path: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = RemoteLock(path)
    lock.acquire()
    monkeypatch.setattr(RemotePath, "read_bytes", failing)
    with pytest.raises(OutputError, match="lock: cannot be read: away"):
        lock.check()
    lock.release()


def failing(_: RemotePath) -> bytes:
    raise OSError("away")


def test_heartbeats_renew_the_lock(path: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_SECONDS", 0.01)
    lock = RemoteLock(path)
    lock.acquire()
    first, deadline = path.read_bytes(), time.monotonic() + 10
    while path.read_bytes() == first:
        assert time.monotonic() < deadline
    lock.check()
    lock.release()
