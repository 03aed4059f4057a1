"""RunLock: one run at a time in an output folder. A file that says who runs, and whose time shows that it is alive.

Knows processes and hosts; knows nothing of rows.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from batchgen.errors import OutputError

HEARTBEAT_SECONDS = 30.0
SILENT_SECONDS = 120.0  # after which a process of another host counts as dead


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a lock."""

    pid: int
    host: str
    started: str | None  # the kernel's mark of when the process began, so that a pid used again is told apart

    @classmethod
    def this_process(cls) -> Holder:
        """Who would hold a lock taken here."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _start_mark(pid))

    def is_live(self, silent_seconds: float) -> bool:
        """Whether the process runs, as far as this host can tell; of another host's, whether it gave a sign lately."""
        if self.host == socket.gethostname():
            return _is_alive(self)
        return silent_seconds < SILENT_SECONDS

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class RunLock:
    """`acquire` before anything is written, `release` at the end; a daemon thread beats in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stop: threading.Event | None = None  # set: the thread ends

    def acquire(self) -> None:
        """Take the lock, also from a process that is dead. Raises OutputError naming the one that is not."""
        mine = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with _exclusive(self.path.parent):
            mine.write_text(json.dumps(asdict(Holder.this_process())), encoding="utf-8")
            now = mine.stat().st_mtime  # by the clock that also stamps the beats, wherever the folder is
            holder = live_holder(self.path, now)
            if holder is not None:
                mine.unlink()
                raise OutputError(
                    f"{self.path.parent.parent}: {holder} is running in this folder; wait for it, or end it"
                )
            mine.replace(self.path)
        self._stop = threading.Event()
        threading.Thread(target=self._heartbeat, args=(self._stop,), daemon=True).start()

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Nothing: on one host no live lock is taken over, and a beat that another host sees is the file's own time."""

    def live_holder(self) -> Holder | None:
        """Who holds the lock; None: nobody, or a process that is dead or has been silent for two minutes."""
        return live_holder(self.path, time.time())

    def _heartbeat(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a disk that fails shows where rows are written
                os.utime(self.path)


def live_holder(path: Path, now: float) -> Holder | None:
    """Who holds the lock at `path`; None: nobody, or a process that is dead or has been silent for two minutes."""
    try:
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
        age = now - path.stat().st_mtime
    except (FileNotFoundError, ValueError, TypeError):  # none, or cut off by a power loss
        return None
    return holder if holder.is_live(age) else None


def _is_alive(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # there, and of another user
    return holder.started == _start_mark(holder.pid)


def _start_mark(pid: int) -> str | None:
    """When a process began, as the kernel counts; None where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Of processes that look at the lock at once, one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
