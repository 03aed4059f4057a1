"""Memory of this process, from /proc/self/status (Linux). Imports nothing that is large itself."""

from __future__ import annotations

import re
import threading
from pathlib import Path


def rss_anon() -> int:
    """Return the anonymous memory in bytes; mapped files are not in it."""
    return _status("RssAnon")


def peak_rss() -> int:
    """Return the most resident memory so far in bytes. getrusage would count the parent's memory too."""
    return _status("VmHWM")


def _status(field: str) -> int:
    (kib,) = re.findall(rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(kib) * 1024


class PeakMemory(threading.Thread):
    """A context that samples RssAnon every few milliseconds and keeps the largest."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0  # in bytes
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, rss_anon())

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.join()
        self.peak = max(self.peak, rss_anon())
