"""Interrupt: SIGINT and SIGTERM end a run; SIGHUP, the loss of the terminal, does not.

The first signal ends the run after committing, a second one at once.

Knows signals; knows nothing of rows. Imports nothing heavy, so that it can watch while the rest is imported.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; `exit_code` is 128 plus its number, as shells have it."""

    def __init__(self, signum: int) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"interrupted by {name}; run the same command again to continue")
        self.exit_code = 128 + signum


def ignore_hangup() -> None:
    """Outlive the terminal, until this process ends; does nothing in a thread other than the main one."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Interrupt:
    """Watches for signals while it is entered; does nothing in a thread other than the main one."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._is_deferred = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            self._previous = {signum: signal.signal(signum, self._handle) for signum in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def is_requested(self) -> bool:
        """Whether a signal has arrived; checked by a loop inside `deferred`."""
        return self._signum is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block finish after the first signal; Interrupted is raised when it ends without an exception."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._signum is not None:
            raise Interrupted(self._signum)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if self._signum is not None:
            # Not the default action, which the first process of a container never takes.
            os._exit(128 + signum)
        self._signum = signum
        if not self._is_deferred:
            raise Interrupted(signum)
