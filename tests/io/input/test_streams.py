"""Decompressed bytes of a file: several members, truncated files, and names that do not match the content."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from batchgen.errors import InputError
from batchgen.io.input.streams import inner_name, open_bytes


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"  # parallel zstd writes one at the beginning
BOTH = pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd)])


def read(path: Path) -> bytes:
    with open_bytes(path) as stream:
        return stream.read()


def written(folder: Path, suffix: str, data: bytes) -> Path:
    path = folder / f"x{suffix}"
    path.write_bytes(data)
    return path


@BOTH
def test_members_are_read_one_after_the_other(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    data = pack(b"one\ntw") + pack(b"") + pack(b"o\n") + pack(b"")  # block gzip ends with an empty member
    assert read(written(tmp_path, suffix, data)) == b"one\ntwo\n"


@BOTH
def test_truncation_inside_a_member_is_detected(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    first, second = pack(b"first line\n"), pack(b"second line\n")
    for length in range(1, len(first + second)):
        if length == len(first):
            continue  # a valid file
        with pytest.raises(InputError, match=rf"x{suffix}: the \w+ data is cut off"):
            read(written(tmp_path, suffix, (first + second)[:length]))


def test_wrong_checksum_is_detected(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"a line of text\n", mtime=0))
    data[-8] ^= 1  # the checksum is followed by four bytes of length
    with pytest.raises(InputError, match=r"x\.gz: the gzip data cannot be decompressed: .*check"):
        read(written(tmp_path, ".gz", bytes(data)))


@pytest.mark.parametrize(
    ("suffix", "data", "words"),
    [
        (".gz", b"", "the file is empty"),
        (".zst", b"", "the file is empty"),
        (".gz", b'{"prompt":"a"}\n', "not gzip data, although the name says so"),
        (".gz", zlib.compress(b"{}\n"), "not gzip data, although the name says so"),
        (".gz", zstd(b"{}\n"), "not gzip data, although the name says so"),
        (".zst", gzip.compress(b"{}\n", mtime=0), "not zstd data, although the name says so"),
        (".gz", gzip.compress(b"{}\n", mtime=0) + b'{"prompt":"a"}\n', "the gzip data cannot be decompressed"),
        (".zst", zstd(b"{}\n") + b'{"prompt":"a"}\n', "the zstd data cannot be decompressed"),
    ],
)
def test_refused_by_name(tmp_path: Path, suffix: str, data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=rf"x{suffix}: {words}"):
        read(written(tmp_path, suffix, data))


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.gz: cannot be read: No such file"):
        read(tmp_path / "x.gz")


def test_skippable_frames_of_zstd_are_skipped(tmp_path: Path) -> None:
    data = SKIPPABLE_FRAME + zstd(b"one\n") + SKIPPABLE_FRAME + zstd(b"two\n")
    assert read(written(tmp_path, ".zst", data)) == b"one\ntwo\n"


@pytest.mark.parametrize(("window_log", "fits"), [(27, True), (28, False)])
def test_zstd_window_that_would_take_more_than_128_mib_is_refused(tmp_path: Path, window_log: int, fits: bool) -> None:
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3])
    path = written(tmp_path, ".zst", header + (4 << 3 | 1).to_bytes(3, "little") + b"one\n")  # one last, raw block
    if fits:
        assert read(path) == b"one\n"
    else:
        with pytest.raises(InputError, match=r"x\.zst: .*too much memory"):
            read(path)


def test_suffix_may_be_in_upper_case(tmp_path: Path) -> None:
    assert read(written(tmp_path, ".GZ", gzip.compress(b"one\n", mtime=0))) == b"one\n"


def test_small_file_that_grows_large_is_streamed(tmp_path: Path) -> None:
    path = written(tmp_path, ".gz", gzip.compress((b" " * (1 << 20) + b"\n") * 64))
    in_arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    with open_bytes(path) as stream:
        num_bytes = most_in_arrow = 0
        for line in stream:
            num_bytes += len(line)
            most_in_arrow = max(most_in_arrow, pa.total_allocated_bytes() - in_arrow)
    most_in_python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_bytes == 64 * ((1 << 20) + 1)
    assert most_in_arrow + most_in_python < 8 << 20


@pytest.mark.parametrize(
    ("name", "inner"), [("x.jsonl.gz", "x.jsonl"), ("a/x.JSON.ZST", "x.JSON"), ("x.jsonl", "x.jsonl"), ("x.gz", "x")]
)
def test_inner_name(name: str, inner: str) -> None:
    assert inner_name(Path(name)) == Path(inner)
