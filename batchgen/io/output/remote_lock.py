"""RemoteLock: one run at a time in a folder of a store, as far as a store can guarantee it.

The lock is an object that names its process and holds the time of its last heartbeat. It is taken by one request that
fails if the object exists (S3 and GCS do this atomically), so of two runs that start at once one is refused. Not
guaranteed: two runs that both take over the lock of a silent process at the same moment, and hosts whose clocks differ
by over a minute. `check` finds both before the next commit; at most the rows since the last commit are lost.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from batchgen.errors import OutputError
from batchgen.io.output.lock import FolderLock, Holder
from batchgen.io.remote import RemotePath


class RemoteLock(FolderLock[RemotePath]):
    """The lock of a folder in a store, see the module."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__(path)
        self._token = uuid4().hex  # tells this run from another that took over the lock

    def check(self) -> None:
        """Raise OutputError if another run has taken over the lock, so that nothing is written into its output."""
        if self._stop is not None and not self._is_mine():
            raise OutputError(f"{self.path}: another run has taken over this folder; this one ends without a commit")

    def _take(self) -> None:
        if self._create():
            return
        self._refuse(self.live_holder())
        self.path.unlink(missing_ok=True)
        if not self._create():
            raise OutputError(f"{self.path}: another run has just taken this lock; wait for it")

    def _remove(self) -> None:
        if self._is_mine():
            self.path.unlink(missing_ok=True)

    def _beat(self, stop: threading.Event) -> None:
        if self._is_mine() and not stop.is_set():
            self.path.write_bytes(self._content())

    def _read(self) -> tuple[Holder, float]:
        values = self._values()
        return Holder(**values["holder"]), values["beat"]

    def _create(self) -> bool:
        try:
            self.path.create(self._content())
        except FileExistsError:
            return self._is_mine()  # the response to the first request may have been lost, and the client retried
        return True

    def _content(self) -> bytes:
        values = {"holder": asdict(Holder.this_process()), "token": self._token, "beat": time.time()}
        return json.dumps(values).encode()

    def _is_mine(self) -> bool:
        return bool(self._values().get("token") == self._token)

    def _values(self) -> dict[str, Any]:
        """Return the content of the lock; empty where there is no lock, or a damaged one."""
        try:
            values = json.loads(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}
