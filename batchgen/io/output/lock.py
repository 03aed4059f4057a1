"""RunLock: one run at a time in an output folder. The lock file names its process; its mtime shows that it is alive.

FolderLock is what locks on a disk and in a store share. Knows lock files; knows nothing of rows.

Processes take a lock on a disk one after the other: under the kernel's flock of the folder, or, where there is none,
while they hold a guard file that only one process can create. Not guaranteed in the second case: two runs that start at
once after a third process died within the instant in which it held the guard file. `check` finds this before the next
commit.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Literal
from uuid import uuid4

from batchgen.errors import OutputError
from batchgen.io.output.holder import SILENT_SECONDS, Holder
from batchgen.io.remote import AnyLocation, Location

log = logging.getLogger("batchgen")

LockMode = Literal["auto", "file", "off"]
HEARTBEAT_SECONDS = 30.0
_GUARD_SECONDS = 10.0  # how long to wait for another process to take or refuse the lock, which takes milliseconds
# How file systems answer flock if they have none. EBADF: it is emulated by a write lock, which a folder cannot have.
_NO_FLOCK = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


class FolderLock(ABC, Generic[AnyLocation]):
    """`acquire` before anything is written, `release` at the end; a daemon thread sends heartbeats in between.

    With mode "off" nobody is refused; the lock file is written all the same, so that others see who is running.
    """

    def __init__(self, path: AnyLocation, mode: LockMode = "auto") -> None:
        self.path = path
        self._mode = mode
        self._token = uuid4().hex  # tells this run from another that took over the lock
        self._stop: threading.Event | None = None  # ends the heartbeat thread when set; None: the lock is not held

    def acquire(self) -> None:
        """Take the lock, also from a dead process. Raises OutputError naming the process that holds it."""
        if self._mode == "off":
            self._announce()
        else:
            self._take()
        self._stop = threading.Event()
        threading.Thread(target=self._send_heartbeats, args=(self._stop,), daemon=True).start()

    def release(self) -> None:
        """Release the lock; does nothing where it is not held, or where another run has taken it over."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            with suppress(OSError):  # a lock that stays is taken over once this process has ended
                if self._is_mine():
                    self.path.unlink(missing_ok=True)

    def live_holder(self) -> Holder | None:
        """Return who holds the lock; None for nobody, a dead process, or one that was silent for two minutes."""
        return self._live_holder(time.time())

    def is_lost(self) -> bool:
        """Whether another run has taken over the lock since this one acquired it. Raises OSError."""
        return self._stop is not None and self._mode != "off" and not self._is_mine()

    def check(self) -> None:
        """Raise OutputError if another run has taken over the lock, so that nothing is written into its output."""
        try:
            is_lost = self.is_lost()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if is_lost:
            raise OutputError(
                f"{self.path}: another run has taken over this folder, or the lock was removed; "
                "this run ends without a commit"
            )

    def is_used_by_others(self, path: Location) -> bool:
        """Whether this file beside the lock is one by which another run is trying to take the lock right now."""
        return False

    @abstractmethod
    def _take(self) -> None:
        """Take the lock for this process. Raises OutputError if a live process holds it."""

    @abstractmethod
    def _create(self) -> bool:
        """Create the lock with `_content`. Returns False if another run's exists already."""

    @abstractmethod
    def _beat(self, stop: threading.Event) -> None:
        """Renew the time of the lock, unless `stop` is set or another run has it. Raises OSError."""

    @abstractmethod
    def _last_beat(self, values: dict[str, Any]) -> float:
        """Return the time of the last heartbeat of a lock with this content. Raises FileNotFoundError or KeyError."""

    def _create_or_replace(self, now: float) -> None:
        if not self._create():
            self._refuse(self._live_holder(now))
            self.path.unlink(missing_ok=True)
            if not self._create():
                raise OutputError(f"{self.path}: another run has just taken this lock; wait for it")

    def _announce(self) -> None:
        """Write the lock whoever holds it."""
        log.info("output.lock is off: nothing keeps other runs out of %s", self.path.parent.parent)
        if (holder := self.live_holder()) is not None:
            log.warning("%s is running in this folder too", holder)
        with suppress(OSError):
            self.path.write_bytes(self._content())

    def _content(self) -> bytes:
        return json.dumps({"holder": asdict(Holder.this_process()), "token": self._token, "beat": time.time()}).encode()

    def _values(self) -> dict[str, Any]:
        """Return the content of the lock; empty where there is no lock, or a damaged one. Raises OSError."""
        try:
            values = json.loads(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _is_mine(self) -> bool:
        return bool(self._values().get("token") == self._token)

    def _live_holder(self, now: float) -> Holder | None:
        try:
            values = self._values()
            holder = Holder(**values["holder"])
            return holder if holder.is_live(now - self._last_beat(values)) else None
        except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError):
            return None  # no lock, or one cut off by a power loss

    def _refuse(self, holder: Holder | None) -> None:
        if holder is not None:
            folder = self.path.parent.parent
            raise OutputError(f"{folder}: {holder} is running in this folder; wait for it, or end it")

    def _send_heartbeats(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a failing disk or store shows where rows are written
                self._beat(stop)


class RunLock(FolderLock[Path]):
    """The lock of a folder on a local or shared disk."""

    def __init__(self, path: Path, mode: LockMode = "auto") -> None:
        super().__init__(path, mode)
        self._mine = path.with_name(f".{path.name}.{self._token}.tmp")

    def is_used_by_others(self, path: Location) -> bool:
        """Whether this file beside the lock is one by which another run is trying to take the lock right now."""
        if not isinstance(path, Path) or not path.name.startswith(f".{self.path.name}."):
            return False
        with suppress(FileNotFoundError):
            return self.path.stat().st_mtime - path.stat().st_mtime < SILENT_SECONDS
        return False

    def _take(self) -> None:
        self._mine.write_bytes(self._content())
        try:
            now = self._mine.stat().st_mtime  # by the clock that stamps heartbeats too
            with self._one_at_a_time(now):
                self._create_or_replace(now)
        finally:
            self._mine.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            _link_or_copy(self._mine, self.path)
        except FileExistsError:
            return self._is_mine()  # NFS may lose the answer to a request, and repeat the request
        return True

    def _beat(self, stop: threading.Event) -> None:
        if self._is_mine() and not stop.is_set():
            os.utime(self.path)

    def _last_beat(self, values: dict[str, Any]) -> float:
        return self.path.stat().st_mtime

    @contextmanager
    def _one_at_a_time(self, now: float) -> Iterator[None]:
        """Let processes inspect and take the lock one after the other."""
        with ExitStack() as stack:
            if self._mode == "file" or not _flock(self.path.parent, stack):
                stack.enter_context(_guard_file(self.path.with_name(f".{self.path.name}.guard"), now))
            yield


def _flock(folder: Path, stack: ExitStack) -> bool:
    """Hold the folder's flock until `stack` is closed. Returns False, after a warning, where there is no flock."""
    try:
        import fcntl  # not on every platform

        descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except ImportError:
        reason = "this platform has no flock"
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        reason = f"flock: {error.strerror}"
    else:
        return True
    log.warning(
        "%s: the file system has no locks (%s); the lock file alone keeps other runs out, as with output.lock: file",
        folder.parent,
        reason,
    )
    return False


@contextmanager
def _guard_file(path: Path, now: float) -> Iterator[None]:
    """Hold a file that only one process can create, for the block. Raises OutputError after ten seconds.

    `now`: the time by the clock of the file system; a file two minutes older is that of a process that has died.
    """
    deadline = time.monotonic() + _GUARD_SECONDS
    while not _create_empty(path):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > SILENT_SECONDS:
                path.unlink()
        if time.monotonic() > deadline:
            raise OutputError(f"{path}: another run is just starting in this folder; run the command again in a while")
        time.sleep(0.02)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _create_empty(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name in one atomic step, or copy it where there are no links. Raises FileExistsError."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        with target.open("xb") as file:
            file.write(source.read_bytes())
