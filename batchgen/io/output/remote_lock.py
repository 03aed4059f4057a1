"""RemoteLock: one run at a time in a folder of a store, as well as a store can promise it.

The lock is an object that says who runs and when it last gave a sign. Taking it is one request that fails if it is
there (S3 and GCS answer that in one go), so of two runs that start at once one is refused. Not promised: two
runs that both take over a lock which fell silent at the same moment, and hosts whose clocks are more than a minute
apart. Both are caught by `check` before the next commit, when at most the rows since the last one are lost.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from batchgen.errors import OutputError
from batchgen.io.output.lock import HEARTBEAT_SECONDS, Holder
from batchgen.io.remote import RemotePath


class RemoteLock:
    """As `lock.RunLock`: `acquire` before anything is written, `release` at the end; a daemon thread beats between."""

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self._token = uuid4().hex  # tells this run from another that took the lock over
        self._stop: threading.Event | None = None  # set: the thread ends

    def acquire(self) -> None:
        """Take the lock, also from a process that is dead. Raises OutputError naming the one that is not."""
        if not self._create():
            holder = self.live_holder()
            if holder is not None:
                folder = self.path.parent.parent
                raise OutputError(f"{folder}: {holder} is running in this folder; wait for it, or end it")
            self.path.unlink(missing_ok=True)
            if not self._create():
                raise OutputError(f"{self.path}: another run has just taken this lock; wait for it")
        self._stop = threading.Event()
        threading.Thread(target=self._heartbeat, args=(self._stop,), daemon=True).start()

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            if self._is_mine():
                self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise OutputError if another run has taken the lock over, so that nothing is written into its work."""
        if self._stop is not None and not self._is_mine():
            raise OutputError(f"{self.path}: another run has taken over this folder; this one ends without a commit")

    def live_holder(self) -> Holder | None:
        """Who holds the lock; None: nobody, or a process that is dead or has been silent for two minutes."""
        values = self._values()
        try:
            holder, age = Holder(**values["holder"]), time.time() - values["beat"]
        except (TypeError, KeyError):
            return None
        return holder if holder.is_live(age) else None

    def _create(self) -> bool:
        try:
            self.path.create(self._content())
        except FileExistsError:
            return self._is_mine()  # the answer to the first try may have been lost, and a client tries again
        return True

    def _content(self) -> bytes:
        values = {"holder": asdict(Holder.this_process()), "token": self._token, "beat": time.time()}
        return json.dumps(values).encode()

    def _is_mine(self) -> bool:
        return bool(self._values().get("token") == self._token)

    def _values(self) -> dict[str, Any]:
        """What the lock says; nothing where there is none, or where it is not as batchgen writes it."""
        try:
            values = json.loads(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _heartbeat(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a store that fails shows where rows are written
                if self._is_mine() and not stop.is_set():
                    self.path.write_bytes(self._content())
