"""What the folders around data files say: values of columns in their names, and that they belong to a table.

Knows names only; reads no data.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from batchgen.errors import InputError
from batchgen.io.remote import Location, RemotePath

log = logging.getLogger("batchgen")

Partition: TypeAlias = Mapping[str, str | None]  # column -> its value in all rows of a file

_NULL = "__HIVE_DEFAULT_PARTITION__"
# Folder that a table has beside its data -> what it then is.
_TABLES = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table", "metadata": "an Iceberg table"}


def partition_of(path: Location, base: Location) -> Partition:
    """Return the columns that the folders named `key=value` give to a file, the outermost first.

    Such folders count between `base`, the folder that `input.path` names, and the file, and in an unbroken line that
    ends in `base`. Raises InputError for a key that a file has twice, and for a name that is not UTF-8.
    """
    parts, num_above = _absolute_parts(path)[:-1], len(_absolute_parts(base))
    above = [*takewhile(_is_partition, reversed(parts[:num_above]))]
    pairs = [_key_and_value(path, part) for part in (*reversed(above), *parts[num_above:]) if _is_partition(part)]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: more than one of its folders is named {name}=...; rename all but one")
    return dict(pairs)


def common_partitions(paths: Sequence[Location], partitions: Sequence[Partition]) -> Sequence[Partition]:
    """Return the partitions of all files, or, with a warning, empty ones if the files do not have the same keys."""
    first = partitions[0]
    for path, partition in zip(paths, partitions, strict=True):
        if partition.keys() != first.keys():
            log.warning(
                "no columns are made of the folders named key=value, whose keys differ: %s has %s, %s has %s",
                *(paths[0], ", ".join(first) or "none", path, ", ".join(partition) or "none"),
            )
            return [{} for _ in paths]
    return partitions


def partition_error(location: str, name: str, what: str) -> InputError:
    """Return the error for a file whose own column contradicts the name of its folder."""
    return InputError(f"{location}: the folder name {name}=... {what}; rename the folder or remove the column")


def base_of(pattern: Location) -> Location:
    """Return the folder in which the first wildcard of a glob pattern is looked up."""
    base = pattern
    for _ in range(len(pattern.parts) - _num_fixed_parts(pattern)):
        base = base.parent
    return base


def refuse_table(entry: Location, base: Location, found: Iterable[Location]) -> None:
    """Raise InputError if the files that a folder or pattern gives are in a folder of a Delta, Iceberg or Hudi table.

    The files in such a folder also hold rows that were deleted or replaced; only the table's log knows which.
    """
    folders = _remote_folders(entry, base) if isinstance(base, RemotePath) else _with_parents(found)
    for folder in folders:
        for name in _TABLES:
            inside = _names_in(folder / name)
            if inside is not None and _is_table(name, inside):
                raise _table_error(entry, folder, name)


def refuse_listed_table(folder: RemotePath, files: Iterable[RemotePath]) -> None:
    """Raise InputError if all files of a remote folder include those of a table, as `refuse_table` does."""
    inside: dict[tuple[str, ...], set[str]] = {}  # folder of a table -> what is directly in it
    for path in files:
        parts = path.parts
        for i, name in enumerate(parts[len(folder.parts) : -1], start=len(folder.parts)):
            if name in _TABLES:
                inside.setdefault(parts[: i + 1], set()).add(parts[i + 1])
    for parts, names in inside.items():
        if _is_table(parts[-1], names):
            raise _table_error(folder, "/".join(parts[:-1]), parts[-1])


def _absolute_parts(path: Location) -> tuple[str, ...]:
    return path.parts if isinstance(path, RemotePath) else Path(os.path.abspath(path)).parts


def _is_partition(name: str) -> bool:
    return name.find("=") > 0


def _key_and_value(path: Location, name: str) -> tuple[str, str | None]:
    key, _, value = name.partition("=")
    try:
        decoded = [unquote_to_bytes(os.fsencode(text)).decode() for text in (key, value)]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the folder name {name!a} is not UTF-8; rename the folder") from error
    return decoded[0], None if value == _NULL else decoded[1]


def _num_fixed_parts(pattern: Location) -> int:
    """Return how many parts of a path precede the first with a wildcard; `[[]` is an escaped bracket."""
    return len([*takewhile(lambda part: not glob.has_magic(re.sub(r"\[[*?\[]\]", "", part)), pattern.parts)])


def _with_parents(found: Iterable[Location]) -> Iterator[Location]:
    """Yield the local folders of files and all folders above, with links resolved, each once."""
    seen: set[Path] = set()
    for folder in sorted({os.path.realpath(path.parent) for path in found if isinstance(path, Path)}):
        for each in (Path(folder), *Path(folder).parents):
            if each in seen:
                break
            seen.add(each)
            yield each


def _remote_folders(entry: Location, base: RemotePath) -> Iterator[RemotePath]:
    """Yield the folder `base`, those above it, and those below it that match the start of a pattern and hold a table.

    The latter are found by patterns, because a request for each folder would take too long. Over HTTP, where a server
    may answer for folders that do not exist, there are none.
    """
    folder = base
    if "://" in folder.path:
        return
    while folder.path.strip("/"):
        yield folder
        folder = folder.parent
    if isinstance(entry, RemotePath):
        for _ in range(len(base.parts) + 1, len(entry.parts)):
            entry = entry.parent
            yield from (match.parent for name in _TABLES for match in (entry / name).expand())


def _names_in(folder: Location) -> set[str] | None:
    """Return the names in a folder; None if there is no such folder, or if it cannot be read."""
    try:
        return {path.name for path in folder.iterdir()} if folder.is_dir() else None
    except OSError:
        return None


def _is_table(name: str, inside: set[str]) -> bool:
    """Return whether a folder `name` with these names in it is one that a table has beside its data."""
    if name != "metadata":
        return True
    is_described = any(each.endswith(".metadata.json") for each in inside)
    return is_described and ("version-hint.text" in inside or any(each.endswith(".avro") for each in inside))


def _table_error(entry: Location, folder: object, name: str) -> InputError:
    return InputError(
        f"{entry}: {folder} is {_TABLES[name]} (it has the folder {name}), whose files also hold rows that were "
        "deleted or replaced; export the table as Parquet or JSON lines, or list the files one by one in input.path"
    )
