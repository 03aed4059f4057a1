"""The bytes of a data file, decompressed if its name ends in .gz or .zst. Knows compression; knows no formats.

Arrow decompresses: it continues from member to member, verifies checksums, and detects an incomplete last member.
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
_MAGIC = {"gzip": (b"\x1f\x8b",), "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(80, 96)))}
_BUFFER_BYTES = 64 << 10
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the first bytes of a pointer file


def is_compressed(path: PurePath | Location) -> bool:
    """True if `open_bytes` decompresses a file of this name."""
    return path.suffix.lower() in _CODECS


def inner_name(path: PurePath | Location) -> PurePath:
    """Return the name without the compression suffix: `x.jsonl` for `x.jsonl.gz`, other names unchanged."""
    name = PurePath(path.name)
    return name.with_suffix("") if is_compressed(name) else name


@contextmanager
def open_bytes(path: Location) -> Iterator[BinaryIO]:
    """Open the decompressed bytes to be read once, from the start; holds a few MiB, or a zstd window (up to 128 MiB).

    Raises InputError, also in the block, for a file that cannot be read, is not compressed as its name says, is
    damaged, or is cut off. A file cut off exactly between two members is valid, so this is not detected.
    """
    codec = _CODECS.get(path.suffix.lower())
    with _as_input_error(path, codec), path.open("rb") as file:
        if codec is None:
            yield file
            return
        _check_magic(path, file.peek(len(LFS_POINTER))[: len(LFS_POINTER)], codec)
        with io.BufferedReader(pa.CompressedInputStream(file, codec), _BUFFER_BYTES) as stream:
            yield stream


def refuse_lfs_pointer(path: Location, head: bytes) -> None:
    """Raise InputError if a file that begins with `head` stands in for the data that Git LFS has not fetched."""
    if head.startswith(LFS_POINTER):
        raise InputError(f"{path}: a Git LFS pointer, not the file itself; fetch it with: git lfs pull")


def _check_magic(path: Location, head: bytes, codec: str) -> None:
    if not head:
        raise InputError(f"{path}: the file is empty, not even an empty {codec} member")
    refuse_lfs_pointer(path, head)
    if not any(head.startswith(magic) or magic.startswith(head) for magic in _MAGIC[codec]):
        raise InputError(f"{path}: not {codec} data, although the name says so; rename the file or write it again")


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
