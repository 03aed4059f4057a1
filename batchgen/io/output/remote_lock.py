"""RemoteLock: one run at a time in a folder of a store, as far as a store can guarantee it.

The lock is an object that names its process and holds the time of its last heartbeat. It is taken by one request that
fails if the object exists (S3 and GCS do this atomically), so of two runs that start at once one is refused. Not
guaranteed: two runs that both take over the lock of a silent process at the same moment, and hosts whose clocks differ
by over a minute. `check` finds both before the next commit; at most the rows since the last commit are lost.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from batchgen.io.output.lock import FolderLock
from batchgen.io.remote import RemotePath


class RemoteLock(FolderLock[RemotePath]):
    """The lock of a folder in a store, see the module. Modes "auto" and "file" are the same."""

    def _take(self) -> None:
        self._create_or_replace(time.time())

    def _create(self) -> bool:
        try:
            self.path.create(self._content())
        except FileExistsError:
            return self._is_mine()  # the response to the first request may have been lost, and the client retried
        return True

    def _beat(self, stop: threading.Event) -> None:
        if self._is_mine() and not stop.is_set():
            self.path.write_bytes(self._content())

    def _last_beat(self, values: dict[str, Any]) -> float:
        return float(values["beat"])
