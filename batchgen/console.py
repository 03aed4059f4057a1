"""The two streams that a person may read. Losing them never fails a run: closed, full, a broken pipe, a lost terminal.

Knows streams and file descriptors; knows nothing of what is written to them.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

_STDOUT, _STDERR = 1, 2


class TolerantStream:
    """A text stream whose writes never fail: after the first failure everything written to it is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = io.StringIO() if stream is None else stream
        self._is_lost = stream is None

    def write(self, text: str) -> int:
        if not self._is_lost:
            try:
                self._write(text)
            except BlockingIOError:
                pass  # the reader is slow, and does not want to be waited for
            except (OSError, ValueError):  # ValueError: the stream was closed
                self._lose()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self._is_lost:
            try:
                self._stream.flush()
            except BlockingIOError:
                pass
            except (OSError, ValueError):
                self._lose()

    def isatty(self) -> bool:
        try:
            return not self._is_lost and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def _lose(self) -> None:
        """Drop what follows, also what libraries and child processes write to the descriptor, and what is buffered."""
        self._is_lost = True
        with suppress(OSError, ValueError):
            descriptor = self._stream.fileno()
            if descriptor in (_STDOUT, _STDERR):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect_console() -> None:
    """Make stdout and stderr tolerant for the rest of this process.

    A descriptor that was closed before the start gets /dev/null: the next file that is opened would take its number,
    and whatever writes to "stderr" would write into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
    for name, descriptor in {"stdout": _STDOUT, "stderr": _STDERR}.items():
        stream = getattr(sys, name)
        if stream is None:  # Python found the descriptor closed
            stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if not isinstance(stream, TolerantStream):
            setattr(sys, name, TolerantStream(stream))


def echo(text: str, *, err: bool = False) -> None:
    """Write a line to stdout, or with `err` to stderr."""
    stream = TolerantStream(sys.stderr if err else sys.stdout)
    stream.write(f"{text}\n")
    stream.flush()


def progress_bar(name: str | None, *, total: int | None = None, initial: int = 0, quiet: bool = False) -> tqdm:
    """A bar of rows on stderr; it shows nothing if stderr is no terminal, or if `quiet`."""
    from tqdm import tqdm  # not above: `batchgen --help` does not need it

    stream: Any = TolerantStream(sys.stderr)
    is_shown = stream.isatty() and not quiet
    return tqdm(desc=name, total=total, initial=initial, unit="row", file=stream, disable=not is_shown)
