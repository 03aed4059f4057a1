"""RemotePath: a file or folder behind an fsspec URL, with the few ways of `pathlib.Path` that input and output need.

Knows fsspec and what stores can and cannot do; knows no formats and no runs. Faults are OSErrors
(`remote_faults.py`), and nothing is tried again here: the clients of the stores do that themselves.
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
from batchgen.io.remote_faults import Reader, naming_faults, without_query

# Stores that show an object whole or not at all. Elsewhere a file is written beside its place and renamed; on these a
# rename would be a copy, and making a folder could make a bucket.
_WHOLE_PUT = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
_EXCLUSIVE = {"s3", "s3a", "gs", "gcs"}  # stores that refuse, in one go, to put an object that is there
_HTTP = {"http", "https"}
# What a store says of an object that changes whenever its content does, the best first.
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
    """By what one tells that a file is still the same; None: the store does not say."""

    size: int | None
    stamp: int | str | None  # mtime in nanoseconds, or what a store has instead


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A place in a store. Methods that a `Path` has too do what they do there; folders exist by what is in them."""

    fs: Any  # fsspec.AbstractFileSystem, which carries no types
    path: str  # as `fs` knows it, without a slash at the end

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
        """True where `open` would find something. Unlike fsspec's own, it does not take a refusal for an absence."""
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
        """Of the folder itself only, in the order of their names."""
        return [path for path in self.iterdir() if fnmatchcase(path.name, pattern)]

    def find(self) -> list[RemotePath]:
        """All files in the folder, at any depth."""
        with self._request():
            return [RemotePath(self.fs, path) for path in self.fs.find(self.path)]

    def expand(self) -> list[RemotePath]:
        """What the path matches as a pattern."""
        with self._request():
            return [RemotePath(self.fs, path) for path in self.fs.glob(self.path)]

    def state(self) -> FileState:
        """Size and stamp as they are now."""
        with self._request():
            info = self.fs.info(self.path)
            stamp = next((info[name] for name in _STAMPS if info.get(name)), None) or self._modified()
            return FileState(info.get("size"), None if stamp is None else str(stamp))

    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader:
        """The bytes from the start, to be read once; over HTTP by one request, which any server can answer."""
        options = {"block_size": 0} if self._is(_HTTP) else {}
        return self._open(**options)

    def open_ranged(self) -> io.BufferedReader:
        """The bytes of any part, for as many requests as there are parts."""
        return self._open()

    def read_bytes(self) -> bytes:
        with self._request():
            return bytes(self.fs.cat_file(self.path))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Put a small object, whole where the store does that."""
        with self._request():
            self.fs.pipe_file(self.path, data)

    def create(self, data: bytes) -> None:
        """As `write_bytes`; FileExistsError if there is one. A store that cannot tell in one go may let two pass."""
        with self._request():
            if not self._is(_EXCLUSIVE):
                if self.fs.exists(self.path):
                    raise FileExistsError
                self.fs.pipe_file(self.path, data)
                return
            try:
                self.fs.pipe_file(self.path, data, mode="create")
            except OSError as error:  # servers refuse in different words
                raise FileExistsError if self.fs.exists(self.path) else error from error

    def put(self, local: Path) -> None:
        """Copy a local file here. A kill at any instant leaves what was here before, or the whole file."""
        with self._request():
            if self._is(_WHOLE_PUT):
                self.fs.put_file(str(local), self.path)
                return
            folder, _, name = self.path.rpartition("/")
            temporary = f"{folder}/.{name}.tmp"
            self.fs.put_file(str(local), temporary)
            self.fs.mv(temporary, self.path)

    def fetch(self, local: Path) -> Path:
        """Copy the file to a local one."""
        with self._request():
            self.fs.get_file(self.path, str(local))
        return local

    def unlink(self, missing_ok: bool = False) -> None:
        with self._request():
            if not missing_ok or self.fs.exists(self.path):
                self.fs.rm_file(self.path)

    def remove(self) -> None:
        """The file, or the folder and all in it; nothing happens where there is none."""
        with self._request():
            if self.fs.exists(self.path):
                self.fs.rm(self.path, recursive=True)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Where folders are more than names."""
        if not self._is(_WHOLE_PUT):
            with self._request():
                self.fs.makedirs(self.path, exist_ok=exist_ok)

    def rmdir(self) -> None:
        """Where folders are more than names. OSError if it is not empty."""
        if not self._is(_WHOLE_PUT):
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
        """A block that asks the store: nothing it hears is older than the block."""
        with naming_faults(self):
            self.fs.invalidate_cache()
            yield


Location: TypeAlias = Path | RemotePath
AnyLocation = TypeVar("AnyLocation", bound=Location)


def locate(text: str | Path) -> Location:
    """The place that a local path or a URL names. Raises BatchgenError naming the package that a protocol needs."""
    if isinstance(text, Path) or "://" not in text:
        return Path(text)
    try:
        fs, path = fsspec.core.url_to_fs(text)
    except ImportError as error:
        package = getattr(error.__cause__, "name", None) or text.partition("://")[0]
        raise BatchgenError(
            f"{without_query(text)}: needs a package that is not installed; pip install {package}"
        ) from error
    except Exception as error:  # clients raise whatever they like
        raise BatchgenError(f"{without_query(text)}: cannot be used as a URL: {error}") from error
    return RemotePath(fs, path.rstrip("/"))


def state_of(path: Location) -> FileState:
    """Size and stamp of a file as they are now. Raises OSError."""
    if isinstance(path, RemotePath):
        return path.state()
    state = path.stat()
    return FileState(state.st_size, state.st_mtime_ns)


@contextmanager
def parquet_source(path: Location) -> Iterator[Path | BinaryIO]:
    """What pyarrow opens a Parquet file by: the path of a local one, an open file elsewhere."""
    if isinstance(path, Path):
        yield path
    else:
        with path.open_ranged() as file:
            yield file
