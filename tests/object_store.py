"""An object store as S3 is one, seen through fsspec: whole PUTs, keys instead of folders, no rename and no append.

The objects are files of one folder on the disk, so that a process which takes over from a killed one finds them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec carries no types
    """Stands in for s3fs. `before_put` is called with the key of every object that is about to be written."""

    protocol = ("s3", "s3a")
    cachable = False
    root: Path
    before_put: Callable[[str], None]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        if (file := self._file(key)).exists():
            state = file.stat()
            return {"name": key, "type": "file", "size": state.st_size, "ETag": f'"{state.st_ino}-{state.st_mtime_ns}"'}
        if any(other.startswith(f"{key}/") for other in self._keys()):
            return {"name": key, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        prefix = self._strip_protocol(path).rstrip("/") + "/"
        below = [key for key in self._keys() if key.startswith(prefix)]
        names = sorted({prefix + key.removeprefix(prefix).partition("/")[0] for key in below})
        if not names and not self.exists(path):
            raise FileNotFoundError(path)
        return [self.info(name) for name in names] if detail else names

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._file(self._strip_protocol(path)).read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        key = self._strip_protocol(path)
        type(self).before_put(key)
        temporary = self.root / f".{os.getpid()}.put"
        temporary.write_bytes(value)
        if mode == "create":
            os.link(temporary, self._file(key))  # fails if there is one
            temporary.unlink()
        else:
            temporary.replace(self._file(key))

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def rm_file(self, path: str) -> None:
        self._file(self._strip_protocol(path)).unlink()

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        key = self._strip_protocol(path)
        for other in self._keys():
            if other == key or (recursive and other.startswith(f"{key}/")):
                self.rm_file(other)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        assert mode == "rb", "objects are put whole"
        return io.BytesIO(self.cat_file(path))

    def _file(self, key: str) -> Path:
        return self.root / quote(key, safe="")

    def _keys(self) -> list[str]:
        return [unquote(file.name) for file in self.root.iterdir() if not file.name.startswith(".")]

    def _refused(self, *_: Any, **__: Any) -> None:
        raise AssertionError("an object store can do no such thing")

    mkdir = makedirs = rmdir = mv = mv_file = cp_file = touch = _refused


def install(root: Path, before_put: Callable[[str], None] = lambda key: None) -> None:
    """From now on s3:// URLs of this process lead to the objects in `root`."""
    root.mkdir(exist_ok=True)
    ObjectStore.root = root
    ObjectStore.before_put = staticmethod(before_put)
    fsspec.register_implementation("s3", ObjectStore, clobber=True)
