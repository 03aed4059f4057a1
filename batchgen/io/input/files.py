"""The files of the input: expands a path, URL, folder, glob or list to an ordered list of data files of one format.

Knows names, suffixes and first bytes, also those inside a compressed file; reads no rows.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from batchgen.errors import InputError
from batchgen.io.input.streams import inner_name, is_compressed, open_bytes
from batchgen.io.remote import FileState, Location, RemotePath, locate, state_of

Format = Literal["parquet", "jsonl"]

_FORMATS: dict[str, Format] = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_SUFFIXES = f"{', '.join(_FORMATS)}, and those of JSON lines followed by .gz or .zst"
_OTHER_COMPRESSION = (".bz2", ".xz", ".zip", ".lz4")
_PARQUET_MAGIC = b"PAR1"
_OTHER_MAGIC = {  # first bytes that no JSON lines file has
    _PARQUET_MAGIC: "Parquet",
    b"PARE": "encrypted Parquet",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """One input file as it was when the job began."""

    path: Location
    name: str  # for row locations: relative to the folder that all files share, always valid UTF-8
    state: FileState

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since the job began: its rows would not match their completions."""
        try:
            now = state_of(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        if now != self.state:
            raise InputError(f"{self.path}: the file was changed while the job ran")


class FoundFiles(NamedTuple):
    files: tuple[DataFile, ...]
    format: Format


def find_files(path: str | Sequence[str], format: Literal["auto", "parquet", "jsonl"]) -> FoundFiles:
    """Expand `input.path`. A list keeps its order; folders and globs are in natural order (part-2 before part-10).

    A folder contributes its files with a data suffix, at any depth; names that begin with "." or "_" are markers and
    are skipped, in globs too. Raises InputError naming the path that is missing, empty, mixed, damaged or repeated.
    """
    entries = [path] if isinstance(path, str) else list(path)
    if not entries or not all(entries):
        raise InputError("input.path is empty")
    try:
        paths = [found for entry in entries for found in _expand(entry)]
        _refuse_repeated(paths)
        _refuse_other_compression(paths)
        chosen = _common_format(paths) if format == "auto" else format
        for each in paths:
            _check_first_bytes(each, chosen)
        return FoundFiles(tuple(_data_files(paths)), chosen)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error


def natural_key(path: Location) -> list[list[str | int]]:
    """Return a sort key that compares numbers inside names by value, and equal numbers by spelling."""
    parts = [re.split(r"(\d+)", part) for part in path.parts]
    return [*([int(x) if i % 2 else x for i, x in enumerate(part)] for part in parts), [str(path)]]


def _expand(entry: str) -> list[Location]:
    path = locate(entry)
    is_file = path.is_file() if isinstance(path, RemotePath) else path.exists() and not path.is_dir()
    if is_file:
        return [path]
    if path.is_dir():
        found = list(_in_folder(path))
        problem = f"the folder holds no data file ({_SUFFIXES})"
    elif glob.has_magic(str(path)):
        found = _in_glob(path)
        problem = "no file matches"
    else:
        raise InputError(f"{path}: no such file or folder")
    if not found:
        raise InputError(f"{path}: {problem}")
    return sorted(found, key=natural_key)


def _in_glob(pattern: Location) -> list[Location]:
    """Return the files that match; if only folders match, the data files in them."""
    matches: list[Location]
    if isinstance(pattern, RemotePath):
        matches = [*pattern.expand()]
    else:
        matches = [Path(match) for match in glob.iglob(str(pattern), recursive=True)]
    visible = [path for path in matches if not any(map(_is_marker, _parts_below(pattern, path)))]
    files = [path for path in visible if not path.is_dir()]
    return files or [path for folder in visible for path in _in_folder(folder)]


def _parts_below(folder: Location, path: Location) -> list[str]:
    """Return the parts of a path that are not parts of the folder, or pattern, itself."""
    return [part for part in path.parts if part not in folder.parts]


def _in_folder(folder: Location) -> Iterator[Location]:
    if isinstance(folder, RemotePath):
        for path in folder.find():
            if _is_data(path.name) and not any(map(_is_marker, path.parts[len(folder.parts) :])):
                yield path
    else:
        yield from _in_local_folder(folder)


def _in_local_folder(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()  # real paths, so that circular links end
    for root, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not _is_marker(name)]
        yield from (Path(root, name) for name in names if not _is_marker(name) and _is_data(name))


def _raise(error: OSError) -> None:
    raise error


def _is_marker(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_data(name: str) -> bool:
    """True for data files, also with an unsupported compression, so that they are refused by name and not skipped."""
    path = inner_name(Path(name.lower()))
    return path.suffix in _FORMATS or (path.suffix in _OTHER_COMPRESSION and Path(path.stem).suffix in _FORMATS)


def _refuse_repeated(paths: Sequence[Location]) -> None:
    seen: dict[str, Location] = {}
    for path in paths:
        real = os.path.realpath(path) if isinstance(path, Path) else path.fs.unstrip_protocol(path.path)
        if real in seen:
            raise InputError(f"{path}: input.path names this file twice (also as {seen[real]})")
        seen[real] = path


def _refuse_other_compression(paths: Sequence[Location]) -> None:
    for path in paths:
        if path.suffix.lower() in _OTHER_COMPRESSION:
            raise InputError(f"{path}: {path.suffix} is not supported; compress it as .gz or .zst, or decompress it")


def _common_format(paths: Sequence[Location]) -> Format:
    first = paths[0]
    for path in paths:
        if _format_of(path) != _format_of(first):
            raise InputError(f"{path} is {_format_of(path)} and {first} is {_format_of(first)}: all need one format")
    return _format_of(first)


def _format_of(path: Location) -> Format:
    suffix = inner_name(path).suffix.lower()
    if suffix not in _FORMATS:
        raise InputError(f"{path}: cannot tell the format from the name; set input.format to parquet or jsonl")
    return _FORMATS[suffix]


def _check_first_bytes(path: Location, format: Format) -> None:
    if isinstance(path, Path) and not path.is_file():
        raise InputError(f"{path}: not a regular file, which is needed because the input is read twice")
    if format == "jsonl":
        _check_jsonl(path)
    else:
        _check_parquet(path)


def _check_jsonl(path: Location) -> None:
    with open_bytes(path) as file:
        head = file.read(4)
    for magic, kind in _OTHER_MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"{path}: not JSON lines but {kind}")


def _check_parquet(path: Location) -> None:
    if is_compressed(path):
        raise InputError(
            f"{path}: Parquet in {path.suffix} is not supported; decompress it (Parquet has its own compression)"
        )
    with path.open("rb") if isinstance(path, Path) else path.open_ranged() as file:
        if file.read(4) != _PARQUET_MAGIC:
            raise InputError(f"{path}: not a Parquet file (it does not begin with PAR1)")
        file.seek(-4, os.SEEK_END)
        tail = file.read(4)
    if tail != _PARQUET_MAGIC:
        raise InputError(f"{path}: the Parquet file is cut off (it does not end with PAR1)")


def _data_files(paths: Sequence[Location]) -> Iterator[DataFile]:
    # A URL is treated as a path from the root, so that it gets a name among local files too.
    absolute = [os.path.abspath(path if isinstance(path, Path) else f"/{path}") for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute])
    for path, full in zip(paths, absolute, strict=True):
        name = os.fsencode(os.path.relpath(full, shared)).decode("utf-8", "backslashreplace")
        yield DataFile(path, name, state_of(path))
