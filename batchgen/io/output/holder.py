"""Holder: the process that holds a lock, and whether it is still running. Knows processes, hosts and containers."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

SILENT_SECONDS = 120.0  # without a heartbeat, after which a process of another host counts as dead


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str
    started: str | None  # start time in the kernel's clock ticks, which tells a reused pid from the old process
    pid_namespace: str | None = None  # in containers with the same host name, a pid names different processes

    @classmethod
    def this_process(cls) -> Holder:
        """Return the holder of a lock that is taken here."""
        pid = os.getpid()
        _, started = _state_and_start(pid)
        return cls(pid, socket.gethostname(), started, _pid_namespace())

    def is_live(self, silent_seconds: float) -> bool:
        """True if the process runs on this host, or runs on another one and its last heartbeat is recent."""
        if self.host == socket.gethostname() and self.pid_namespace in (None, _pid_namespace()):
            return _is_running(self)
        return silent_seconds < SILENT_SECONDS

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _is_running(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists and is another user's
    state, started = _state_and_start(holder.pid)
    has_ended = state in ("Z", "X")  # and its parent has not asked for its exit code yet
    return not has_ended and (started is None or started == holder.started)


def _state_and_start(pid: int) -> tuple[str | None, str | None]:
    """Return the state of a process and when it began, in the kernel's clock ticks.

    Both are None without /proc, and where /proc hides the processes of other users.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()  # behind the name, which may contain anything
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None, None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
