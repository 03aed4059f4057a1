"""Errors of a store: any exception of its client becomes an OSError that names the file.

Knows errors; knows no paths.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HTTP_QUERY = re.compile(r"(https?://[^\s'\"?#]*)[?#][^\s'\"]*")


@contextmanager
def as_os_error(path: object) -> Iterator[None]:
    """Turn any exception of the block into an OSError that names `path`."""
    try:
        yield
    except Exception as error:  # clients raise exceptions of any type
        raise _os_error(error, str(path)) from error


class Reader(io.RawIOBase):
    """A readable fsspec file that raises only OSErrors, which name it."""

    def __init__(self, path: object, file: Any) -> None:
        self._path = path
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        with as_os_error(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with as_os_error(self._path):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def without_query(text: str) -> str:
    """Return the text for a message, without the queries of HTTP addresses: they often hold a signature."""
    return _HTTP_QUERY.sub(r"\1", text)


def _os_error(error: Exception, path: str) -> OSError:
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such file or folder", path)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "already exists", path)
    if isinstance(error, NotImplementedError):
        return OSError(errno.EOPNOTSUPP, "this kind of store does not support the operation", path)
    if isinstance(error, ValueError) and "range requests" in str(error):
        return OSError(
            errno.EOPNOTSUPP, "the server does not support Range requests; copy the file to a local folder", path
        )
    number = errno.EACCES if isinstance(error, PermissionError) else getattr(error, "errno", None) or errno.EIO
    return OSError(number, without_query(str(error)) or type(error).__name__, path)
