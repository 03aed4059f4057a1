"""The two streams that a person may read. Losing them never fails a run: closed, full, a broken pipe, a lost terminal.

Knows streams and file descriptors; knows nothing of what is written to them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm


class TolerantStream:
    """A text stream whose writes never fail: after the first failure everything written to it is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: there is none, or it has failed

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            except (OSError, ValueError):  # ValueError: the stream was closed
                self._stream = None
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

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
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
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
