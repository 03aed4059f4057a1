"""Where compiled kernels are kept on disk. Knows folders; knows nothing of compilers.

A kernel in a cache is code that will run, so a folder outside the installation is used only if it belongs to this user
and no other user can write to it. A machine may have no such folder: the installation is read-only, the user has no
name and no home, or both.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def choose_cache_folder(preferred: Path, name: str) -> Path | None:
    """Return the first of these folders that can be written to, after creating it; None if none can.

    They are `preferred`, and `name` in the user's cache folder and in a temporary folder of this user.
    """
    if _is_writable(preferred):
        return preferred
    return next((base / name for base in _own_folders() if _is_private(base) and _is_writable(base / name)), None)


def user_cache() -> Path | None:
    """Return batchgen's folder in the cache folder of the user: $XDG_CACHE_HOME or ~/.cache; None without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # relative if no home is known
    return Path(base, "batchgen") if os.path.isabs(base) else None


def temporary_cache() -> Path | None:
    """Return the temporary folder of this user's processes; None if no folder for temporary files can be written to."""
    try:
        return Path(tempfile.gettempdir(), f"batchgen-{os.getuid()}")
    except FileNotFoundError:
        return None


def _own_folders() -> Iterator[Path]:
    yield from (folder for folder in (user_cache(), temporary_cache()) if folder is not None)


def _is_private(folder: Path) -> bool:
    """Create the folder for this user alone; return whether it is a folder that only this user can write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()  # a link may have been made by another user
    except OSError:
        return False
    is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not is_open


def _is_writable(folder: Path) -> bool:
    """Create the folder; return whether files can be created in it. A relative one is none: its home is not known."""
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
