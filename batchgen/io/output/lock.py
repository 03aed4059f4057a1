"""RunLock: one run at a time in an output folder. The lock file names its process; its mtime shows that it is alive.

FolderLock is what locks on a disk and in a store share. Knows processes and hosts; knows nothing of rows.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic

from batchgen.errors import OutputError
from batchgen.io.remote import AnyLocation

HEARTBEAT_SECONDS = 30.0
SILENT_SECONDS = 120.0  # without a heartbeat, after which a process of another host counts as dead


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str
    started: str | None  # start time in the kernel's clock ticks, which tells a reused pid from the old process

    @classmethod
    def this_process(cls) -> Holder:
        """Return the holder of a lock that is taken here."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _start_time(pid))

    def is_live(self, silent_seconds: float) -> bool:
        """True if the process runs on this host, or runs on another one and its last heartbeat is recent."""
        if self.host == socket.gethostname():
            return _is_running(self)
        return silent_seconds < SILENT_SECONDS

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FolderLock(ABC, Generic[AnyLocation]):
    """`acquire` before anything is written, `release` at the end; a daemon thread sends heartbeats in between."""

    def __init__(self, path: AnyLocation) -> None:
        self.path = path
        self._stop: threading.Event | None = None  # ends the heartbeat thread when set; None: the lock is not held

    def acquire(self) -> None:
        """Take the lock, also from a dead process. Raises OutputError naming the process that holds it."""
        self._take()
        self._stop = threading.Event()
        threading.Thread(target=self._send_heartbeats, args=(self._stop,), daemon=True).start()

    def release(self) -> None:
        """Release the lock; does nothing where it is not held."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            self._remove()

    def live_holder(self) -> Holder | None:
        """Return who holds the lock; None for nobody, a dead process, or one that was silent for two minutes."""
        return self._live_holder(time.time())

    @abstractmethod
    def check(self) -> None:
        """Raise OutputError if another run has taken over the lock, so that nothing is written into its output."""

    @abstractmethod
    def _take(self) -> None:
        """Write the lock for this process. Raises OutputError if a live process holds it."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the lock, unless it is another run's."""

    @abstractmethod
    def _beat(self, stop: threading.Event) -> None:
        """Renew the time of the lock, unless `stop` is set. Raises OSError."""

    @abstractmethod
    def _read(self) -> tuple[Holder, float]:
        """Return the holder and the time of its last heartbeat.

        Raises FileNotFoundError, or ValueError, TypeError or KeyError for a damaged lock.
        """

    def _live_holder(self, now: float) -> Holder | None:
        try:
            holder, beat = self._read()
            silent_seconds = now - beat
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # no lock, or one cut off by a power loss
            return None
        return holder if holder.is_live(silent_seconds) else None

    def _refuse(self, holder: Holder | None) -> None:
        if holder is not None:
            folder = self.path.parent.parent
            raise OutputError(f"{folder}: {holder} is running in this folder; wait for it, or end it")

    def _send_heartbeats(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a failing disk or store shows where rows are written
                self._beat(stop)


class RunLock(FolderLock[Path]):
    """The lock of a folder on a local or shared disk; concurrent `acquire`s are serialised by flock."""

    def check(self) -> None:
        """Do nothing: a live lock of the same host is never taken over, and other hosts see the file's own mtime."""

    def _take(self) -> None:
        mine = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with _exclusive(self.path.parent):
            mine.write_text(json.dumps(asdict(Holder.this_process())), encoding="utf-8")
            try:
                self._refuse(self._live_holder(mine.stat().st_mtime))  # now, by the clock that stamps heartbeats too
                mine.replace(self.path)
            finally:
                mine.unlink(missing_ok=True)

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _beat(self, stop: threading.Event) -> None:
        os.utime(self.path)

    def _read(self) -> tuple[Holder, float]:
        return Holder(**json.loads(self.path.read_text(encoding="utf-8"))), self.path.stat().st_mtime


def _is_running(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists and is another user's
    return holder.started == _start_time(holder.pid)


def _start_time(pid: int) -> str | None:
    """Return when a process began, in the kernel's clock ticks; None where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's flock for the block, so that processes inspect and take the lock one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
