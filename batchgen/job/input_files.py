"""Input files in a fingerprint: their content in words, and whether the input of a run has only grown since.

Knows bytes; knows nothing of rows. Input has grown when nothing before its old end has changed: files come behind the
old ones, or the last old one is plain JSON lines and longer. Parquet is rewritten to hold more rows, and the end of a
compressed file cannot be told from its bytes, so for these a new file is the way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from batchgen.errors import InputError
from batchgen.io.remote import Location
from batchgen.io.streams import is_compressed

_CHUNK_BYTES = 1 << 20
_IN_WORDS = re.compile(r"(?s)(.*), (\d+) bytes, blake2b (\w+)")
_KEY = "input file "


def input_key(number: int) -> str:
    """The fingerprint's key of an input file, counted from 0."""
    return f"{_KEY}{number + 1}"


def in_words(path: Location, size: int | None, digest: str) -> str:
    """What a fingerprint says of an input file."""
    return f"{path}, {size} bytes, blake2b {digest}"


def digest_of_start(path: Location, size: int | None) -> str:
    """Hash of the first `size` bytes of a file, or of all of it."""
    digest = blake2b(digest_size=16)
    left = size if size is not None else sys.maxsize
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def appended_files(old: Mapping[str, str], new: Mapping[str, str], files: Sequence[Location]) -> set[str]:
    """The keys of two fingerprints that differ only because rows came behind all old ones. Raises InputError."""
    num_old = sum(key.startswith(_KEY) for key in old)
    keys = {input_key(number) for number in range(num_old, len(files))}
    last = input_key(num_old - 1)
    if num_old <= len(files) and old[last] != new[last] and _has_grown(files[num_old - 1], old[last]):
        keys.add(last)
    return keys


def _has_grown(path: Location, old: str) -> bool:
    """Whether a local file still begins with all its old lines, each ended as it was."""
    known = _IN_WORDS.fullmatch(old)
    if known is None or known[1] != str(path) or not isinstance(path, Path):
        return False
    with reading(path):
        if is_compressed(path) or path.stat().st_size <= int(known[2]):
            return False
        return digest_of_start(path, int(known[2])) == known[3] and _is_between_lines(path, int(known[2]))


def _is_between_lines(path: Path, at: int) -> bool:
    """Whether no line goes on from before this byte to behind it. A Parquet file begins with no line."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return False
        file.seek(max(at - 1, 0))
        before, behind = file.read(1), file.read(1)
    return at == 0 or before == b"\n" or behind == b"\n"


@contextmanager
def reading(path: Location) -> Iterator[None]:
    """A block that reads an input file. Raises InputError naming it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
