"""RemotePath: a file or folder behind an fsspec URL, with the methods of `pathlib.Path` that input and output need.

Knows fsspec and what stores can and cannot do; knows no formats and no runs. Errors are OSErrors
(`remote_faults.py`). Nothing is retried here: the clients of the stores do that themselves.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, TypeVar

import fsspec

from batchgen.errors import BatchgenError
from batchgen.io.remote_faults import Reader, as_os_error, without_query

# Stores whose put is atomic. Elsewhere a temporary file is written and renamed; on these a rename would be a copy, and
# making a folder could make a bucket.
_ATOMIC_PUT = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
_ATOMIC_CREATE = {"s3", "s3a", "gs", "gcs"}  # stores that atomically refuse to put an object that exists
_HTTP = {"http", "https"}
# Keys of a store's object info whose value changes whenever the content does, the most reliable first.
_STAMPS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
)
_BUFFER_BYTES = 1 << 20


class FileState(NamedTuple):
    """What tells whether a file has changed; None: the store does not report it."""

    size: int | None
    stamp: int | str | None  # mtime in nanoseconds; in a store its ETag or similar, as text


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path in a store. Methods that `Path` has too behave as there; a folder exists while something is in it."""

    fs: Any  # fsspec.AbstractFileSystem, which carries no types
    path: str  # as `fs` writes it, without a trailing slash

    def __str__(self) -> str:
        return without_query(self.fs.unstrip_protocol(self.path))

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.fs, f"{self.path}/{name}")

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(without_query(self.path)).parts

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.fs, self.path.rpartition("/")[0])

    def exists(self) -> bool:
        with self._request():
            return bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        with self._request():
            return bool(self.fs.isdir(self.path))

    def is_file(self) -> bool:
        """True if `open` would find a file. Unlike fsspec's `isfile`, raises if the store refuses access."""
        with self._request():
            try:
                return bool(self.fs.info(self.path)["type"] == "file")
            except FileNotFoundError:
                return False

    def iterdir(self) -> Iterator[RemotePath]:
        with self._request():
            found = self.fs.ls(self.path, detail=False) if self.fs.isdir(self.path) else []
        own = self.path.strip("/")
        return (RemotePath(self.fs, path.rstrip("/")) for path in sorted(found) if path.strip("/") != own)

    def glob(self, pattern: str) -> list[RemotePath]:
        """Return what matches directly in this folder, sorted by name."""
        return [path for path in self.iterdir() if fnmatchcase(path.name, pattern)]

    def find(self) -> list[RemotePath]:
        """Return all files in the folder, at any depth."""
        with self._request():
            return [RemotePath(self.fs, path) for path in self.fs.find(self.path)]

    def expand(self) -> list[RemotePath]:
        """Return what the path matches as a glob pattern."""
        with self._request():
            return [RemotePath(self.fs, path) for path in self.fs.glob(self.path)]

    def state(self) -> FileState:
        """Return the current size and stamp."""
        with self._request():
            info = self.fs.info(self.path)
            stamp = next((info[name] for name in _STAMPS if info.get(name)), None) or self._modified()
            return FileState(info.get("size"), None if stamp is None else str(stamp))

    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader:
        """Open the file to be read once, from the start; over HTTP by one request, which any server supports."""
        options = {"block_size": 0} if self._is(_HTTP) else {}
        return self._open(**options)

    def open_ranged(self) -> io.BufferedReader:
        """Open the file for reading at any offset, with one request per part."""
        return self._open()

    def read_bytes(self) -> bytes:
        with self._request():
            return bytes(self.fs.cat_file(self.path))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Write a small object; atomic where the store's put is."""
        with self._request():
            self.fs.pipe_file(self.path, data)

    def create(self, data: bytes) -> None:
        """Like `write_bytes`, but raises FileExistsError if the object exists. Not atomic outside _ATOMIC_CREATE."""
        with self._request():
            if not self._is(_ATOMIC_CREATE):
                if self.fs.exists(self.path):
                    raise FileExistsError
                self.fs.pipe_file(self.path, data)
                return
            try:
                self.fs.pipe_file(self.path, data, mode="create")
            except OSError as error:  # servers report this in different ways
                raise FileExistsError if self.fs.exists(self.path) else error from error

    def put(self, local: Path) -> None:
        """Copy a local file here. A kill at any instant leaves the previous file or the whole new one."""
        with self._request():
            if self._is(_ATOMIC_PUT):
                self.fs.put_file(str(local), self.path)
                return
            folder, _, name = self.path.rpartition("/")
            temporary = f"{folder}/.{name}.tmp"
            self.fs.put_file(str(local), temporary)
            self.fs.mv(temporary, self.path)

    def fetch(self, local: Path) -> Path:
        """Copy the file to the local path, and return that."""
        with self._request():
            self.fs.get_file(self.path, str(local))
        return local

    def unlink(self, missing_ok: bool = False) -> None:
        with self._request():
            if not missing_ok or self.fs.exists(self.path):
                self.fs.rm_file(self.path)

    def remove(self) -> None:
        """Remove the file, or the folder and everything in it; does nothing where there is none."""
        with self._request():
            if self.fs.exists(self.path):
                self.fs.rm(self.path, recursive=True)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Make the folder, except where folders are only prefixes of object names."""
        if not self._is(_ATOMIC_PUT):
            with self._request():
                self.fs.makedirs(self.path, exist_ok=exist_ok)

    def rmdir(self) -> None:
        """Remove the folder, except where folders are only prefixes of names. Raises OSError if it is not empty."""
        if not self._is(_ATOMIC_PUT):
            with self._request():
                self.fs.rmdir(self.path)

    def _is(self, protocols: set[str]) -> bool:
        own = self.fs.protocol
        return not protocols.isdisjoint([own] if isinstance(own, str) else own)

    def _modified(self) -> Any:
        try:
            return self.fs.modified(self.path)
        except NotImplementedError:
            return None

    def _open(self, **options: Any) -> io.BufferedReader:
        with self._request():
            return io.BufferedReader(Reader(self, self.fs.open(self.path, "rb", **options)), _BUFFER_BYTES)

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Send the block's requests to the store without cached answers; raises only OSErrors."""
        with as_os_error(self):
            self.fs.invalidate_cache()
            yield


Location: TypeAlias = Path | RemotePath
AnyLocation = TypeVar("AnyLocation", bound=Location)


def locate(text: str | Path) -> Location:
    """Return what a local path or a URL names. Raises BatchgenError naming the package that a protocol needs."""
    if isinstance(text, Path) or "://" not in text:
        return Path(text)
    try:
        fs, path = fsspec.core.url_to_fs(text)
    except ImportError as error:
        package = getattr(error.__cause__, "name", None) or text.partition("://")[0]
        raise BatchgenError(
            f"{without_query(text)}: needs a package that is not installed; pip install {package}"
        ) from error
    except Exception as error:  # clients raise exceptions of any type
        raise BatchgenError(f"{without_query(text)}: cannot be used as a URL: {error}") from error
    return RemotePath(fs, path.rstrip("/"))


def state_of(path: Location) -> FileState:
    """Return the current size and stamp of a file. Raises OSError."""
    if isinstance(path, RemotePath):
        return path.state()
    state = path.stat()
    return FileState(state.st_size, state.st_mtime_ns)


@contextmanager
def parquet_source(path: Location) -> Iterator[Path | BinaryIO]:
    """Yield what pyarrow opens a Parquet file by: the path of a local file, otherwise an open file."""
    if isinstance(path, Path):
        yield path
    else:
        with path.open_ranged() as file:
            yield file
