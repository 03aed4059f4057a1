"""The bytes of a data file, decompressed on the way where its name ends in .gz or .zst. Knows compression; no formats.

Arrow decompresses: it goes on from member to member, checks the sums, and says when the last member is not whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import BinaryIO

import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.remote import Location

_CODECS = {".gz": "gzip", ".zst": "zstd"}
_MARKS = {"gzip": (b"\x1f\x8b",), "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(80, 96)))}
_BUFFER_BYTES = 64 << 10


def is_compressed(path: PurePath | Location) -> bool:
    """True if the name ends as one that `open_bytes` decompresses."""
    return path.suffix.lower() in _CODECS


def inner_name(path: PurePath | Location) -> PurePath:
    """The name of what is inside: `x.jsonl` for `x.jsonl.gz`, and any other name as it is."""
    name = PurePath(path.name)
    return name.with_suffix("") if is_compressed(name) else name


@contextmanager
def open_bytes(path: Location) -> Iterator[BinaryIO]:
    """The decompressed bytes from the start, to be read once; what is held is a few MiB, or a zstd window (to 128 MiB).

    Raises InputError, also in the block, for a file that cannot be read, is not compressed as its name says, is
    damaged, or is cut off. A cut exactly between two members leaves a whole file, so nothing can tell.
    """
    codec = _CODECS.get(path.suffix.lower())
    with _as_input_error(path, codec), path.open("rb") as file:
        if codec is None:
            yield file
            return
        _check_mark(path, file.peek(4)[:4], codec)
        with io.BufferedReader(pa.CompressedInputStream(file, codec), _BUFFER_BYTES) as stream:
            yield stream


def _check_mark(path: Location, head: bytes, codec: str) -> None:
    if not head:
        raise InputError(f"{path}: the file is empty, not even an empty {codec} file")
    if not any(head.startswith(mark) or mark.startswith(head) for mark in _MARKS[codec]):
        raise InputError(f"{path}: not {codec} data, as the name says; rename the file or write it again")


@contextmanager
def _as_input_error(path: Location, codec: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is not None or codec is None:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        if "Truncated" in str(error):
            raise InputError(f"{path}: the {codec} data is cut off; copy or write the file again") from error
        raise InputError(f"{path}: the {codec} data cannot be decompressed: {error}") from error
