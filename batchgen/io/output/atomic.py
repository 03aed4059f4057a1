"""Files that are written completely or not at all, on the local disk and in a store.

Knows what file systems lack; knows nothing of what is written.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from batchgen.errors import OutputError
from batchgen.io.remote import Location, RemotePath

log = logging.getLogger("batchgen")

# How file systems answer fsync if they have none: CIFS and many FUSE ones for folders, a few for files too.
_NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def atomic_write(path: Location) -> Iterator[Path]:
    """Yield a local temporary path; when the block succeeds, that file is made durable and becomes `path`.

    A kill at any instant leaves the old `path` or the new one. Raises OutputError if the disk or the store fails.
    """
    write = _write_and_rename(path) if isinstance(path, Path) else _write_and_put(path)
    with as_output_error(path), write as temporary:
        yield temporary


@contextmanager
def _write_and_rename(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _write_and_put(path: RemotePath) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="batchgen-") as folder:
        temporary = Path(folder, path.name)
        yield temporary
        path.put(temporary)


@contextmanager
def as_output_error(path: Location) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names the path."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk. Warns once where the file system cannot. Raises OSError."""
    is_folder = path.is_dir()
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # some shares flush only what may be written
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
        _warn_of_no_fsync("folders" if is_folder else "files", error.strerror)
    finally:
        os.close(descriptor)


@cache
def _warn_of_no_fsync(what: str, reason: str) -> None:
    """Warn, once for each kind."""
    log.warning(
        "the file system of the output cannot flush %s to the disk (fsync: %s); "
        "a power loss may lose the newest commit",
        what,
        reason,
    )
