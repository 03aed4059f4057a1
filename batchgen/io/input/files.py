"""The files of the input: expands a path, URL, folder, glob or list to an ordered list of data files of one format.

Knows names, suffixes and first bytes, also those inside a compressed file; reads no rows.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from batchgen.errors import InputError
from batchgen.io.input.folders import (
    Partition,
    base_of,
    common_partitions,
    partition_of,
    refuse_listed_table,
    refuse_table,
)
from batchgen.io.input.streams import LFS_POINTER, inner_name, is_compressed, open_bytes, refuse_lfs_pointer
from batchgen.io.remote import FileState, Location, RemotePath, locate, state_of

Format = Literal["parquet", "jsonl"]

_FORMATS: dict[str, Format] = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_SUFFIXES = f"{', '.join(_FORMATS)}, and those of JSON lines followed by .gz or .zst"
_OTHER_COMPRESSION = (".bz2", ".xz", ".zip", ".lz4")
_PARQUET_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
ENCRYPTED = "the Parquet file is encrypted, as a whole or in some columns, which is not supported; write it unencrypted"
_OTHER_MAGIC = {  # first bytes that no JSON lines file has
    _PARQUET_MAGIC: "Parquet",
    _ENCRYPTED_MAGIC: "encrypted Parquet",
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
    partition: Partition = field(default_factory=dict)

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since the job began: its rows would not match their completions."""
        try:
            now = state_of(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        if now != self.state:
            raise InputError(f"{self.path}: the file was changed while the job ran")


class _Found(NamedTuple):
    path: Location
    base: Location  # the folder that the entry of `input.path` names, or that of a pattern's first wildcard


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
        found = [each for entry in entries for each in _expand(entry)]
        paths = [each.path for each in found]
        _refuse_repeated(paths)
        _refuse_other_compression(paths)
        chosen = _common_format(paths) if format == "auto" else format
        for each in paths:
            _check_first_bytes(each, chosen)
        partitions = common_partitions(paths, [partition_of(*each) for each in found])
        return FoundFiles(tuple(_data_files(paths, partitions)), chosen)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error


def natural_key(path: Location) -> list[list[str | int]]:
    """Return a sort key that compares numbers inside names by value, and equal numbers by spelling."""
    parts = [re.split(r"(\d+)", part) for part in path.parts]
    return [*([int(x) if i % 2 else x for i, x in enumerate(part)] for part in parts), [str(path)]]


def _expand(entry: str) -> list[_Found]:
    path = locate(entry)
    is_file = path.is_file() if isinstance(path, RemotePath) else path.exists() and not path.is_dir()
    if is_file:
        return [_Found(path, path.parent)]
    if path.is_dir():
        found, base = list(_in_folder(path)), path
        problem = f"the folder holds no data file ({_SUFFIXES})"
    elif glob.has_magic(str(path)):
        found, base = _in_glob(path), base_of(path)
        problem = "no file matches"
    else:
        raise InputError(f"{path}: no such file or folder")
    if not found:
        raise InputError(f"{path}: {problem}")
    refuse_table(path, base, found)
    return [_Found(each, base) for each in sorted(found, key=natural_key)]


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
        paths = folder.find()
        refuse_listed_table(folder, paths)
        for path in paths:
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
    """True for names of files and folders that hold no rows; `_key=value` is a folder of rows."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


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
        head = file.read(len(LFS_POINTER))
    refuse_lfs_pointer(path, head)
    for magic, kind in _OTHER_MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"{path}: not JSON lines but {kind}")


def _check_parquet(path: Location) -> None:
    if is_compressed(path):
        raise InputError(
            f"{path}: Parquet in {path.suffix} is not supported; decompress it (Parquet has its own compression)"
        )
    with _open_ranged(path) as file:
        head = file.read(len(LFS_POINTER))
        refuse_lfs_pointer(path, head)
        if not head:
            raise InputError(f"{path}: the file is empty; even a Parquet file without rows has a header and a footer")
        if head.startswith(_ENCRYPTED_MAGIC):
            raise InputError(f"{path}: {ENCRYPTED}")
        if not head.startswith(_PARQUET_MAGIC):
            raise InputError(f"{path}: not a Parquet file (it does not begin with PAR1)")
        _footer_len(path, file)


def footer_len(path: Location) -> int:
    """Return the bytes of a Parquet file's footer, as the file's end states them. Raises InputError."""
    with _open_ranged(path) as file:
        return _footer_len(path, file)


def _footer_len(path: Location, file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    if size < 12 or not tail.endswith(_PARQUET_MAGIC):
        raise InputError(f"{path}: the Parquet file is cut off (it does not end with PAR1)")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= size - 12:
        raise InputError(
            f"{path}: the Parquet file is damaged: it states a footer of {length:,} bytes, and there are only "
            f"{size - 12:,}; copy or write the file again"
        )
    return length


def _open_ranged(path: Location) -> BinaryIO:
    return path.open("rb") if isinstance(path, Path) else path.open_ranged()


def _data_files(paths: Sequence[Location], partitions: Sequence[Partition]) -> Iterator[DataFile]:
    # A URL is treated as a path from the root, so that it gets a name among local files too.
    absolute = [os.path.abspath(path if isinstance(path, Path) else f"/{path}") for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute])
    for path, full, partition in zip(paths, absolute, partitions, strict=True):
        name = os.fsencode(os.path.relpath(full, shared)).decode("utf-8", "backslashreplace")
        yield DataFile(path, name, state_of(path), partition)
