"""RemotePath: its operations in two kinds of store, and that every error is an OSError that names the path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import fsspec
import pytest

from batchgen.errors import BatchgenError
from batchgen.io.remote import FileState, RemotePath, locate, state_of


@pytest.fixture
def location(store: RemotePath) -> RemotePath:
    return store / "data"


def local(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "local"
    path.write_bytes(data)
    return path


def test_local_path_is_a_path() -> None:
    assert locate("/a/b") == Path("/a/b")


def test_parts_of_a_remote_path(location: RemotePath) -> None:
    path = location / "x" / "part-0.jsonl.gz"
    assert (path.name, path.suffix, path.parent) == ("part-0.jsonl.gz", ".gz", location / "x")
    assert str(path).endswith("bucket/data/x/part-0.jsonl.gz")


def test_a_folder_exists_while_something_is_in_it(location: RemotePath) -> None:
    assert not location.exists()
    (location / "a" / "x").write_bytes(b"1")
    assert (location.is_dir(), location.is_file(), (location / "a" / "x").is_file()) == (True, False, True)


def test_listing_is_sorted_and_covers_one_folder(location: RemotePath) -> None:
    for name in ("chunk-1", "chunk-0", "a/chunk-2", ".chunk-3.tmp"):
        (location / name).write_bytes(b"1")
    assert [path.name for path in location.iterdir()] == [".chunk-3.tmp", "a", "chunk-0", "chunk-1"]
    assert location.glob("chunk-*") == [location / "chunk-0", location / "chunk-1"]
    assert [*(location / "none").iterdir()] == []


def test_put_and_fetch(location: RemotePath, tmp_path: Path) -> None:
    (location / "x").put(local(tmp_path, b"old"))
    (location / "x").put(local(tmp_path, b"new"))
    assert (location / "x").read_bytes() == b"new"
    assert (location / "x").fetch(tmp_path / "copy").read_bytes() == b"new"
    assert [path.name for path in location.iterdir()] == ["x"]


def test_create_refuses_an_existing_object(location: RemotePath) -> None:
    (location / "x").create(b"1")
    with pytest.raises(FileExistsError):
        (location / "x").create(b"2")
    assert (location / "x").read_bytes() == b"1"


def test_state_changes_with_the_content(location: RemotePath) -> None:
    (location / "x").write_bytes(b"1")
    before = state_of(location / "x")
    assert before == state_of(location / "x")
    (location / "x").write_bytes(b"2")
    assert state_of(location / "x").size == before.size == 1
    assert state_of(location / "x") != before


def test_remove_deletes_a_folder_and_accepts_a_missing_one(location: RemotePath) -> None:
    (location / "a" / "x").write_bytes(b"1")
    (location / "a").remove()
    (location / "a").remove()
    (location / "a" / "x").unlink(missing_ok=True)
    assert not (location / "a").exists()


def test_local_file_state(tmp_path: Path) -> None:
    path = local(tmp_path, b"123")
    assert state_of(path) == FileState(3, path.stat().st_mtime_ns)


def test_a_missing_file_is_named(location: RemotePath) -> None:
    with pytest.raises(FileNotFoundError, match="no such file") as caught:
        (location / "x").read_bytes()
    assert caught.value.filename == str(location / "x")


class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec carries no types
    protocol = "failing"

    def info(self, path: str, **_: object) -> object:
        raise RuntimeError("token expired")  # clients raise exceptions of any type

    def _open(self, path: str, *_: object, **__: object) -> object:
        return self

    def read(self, _: int) -> bytes:
        raise ValueError("connection reset")

    def tell(self) -> int:
        return 0

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_errors_of_a_client_become_os_errors() -> None:
    path = RemotePath(Failing(), "bucket/x")
    with pytest.raises(OSError, match="token expired") as caught:
        path.state()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "failing://bucket/x")
    with path.open() as file, pytest.raises(OSError, match="connection reset"):
        file.read()


def test_missing_package_is_named() -> None:
    fsspec.register_implementation("absent", "no_such_package.FileSystem", clobber=True, errtxt="Install it")
    with pytest.raises(BatchgenError, match=r"absent://b/x: .*pip install no_such_package"):
        locate("absent://b/x")


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(BatchgenError, match=r"nope://b/x: cannot be used as a URL: .*nope"):
        locate("nope://b/x")


def test_signature_of_an_address_is_not_shown() -> None:
    fs = type("Http", (fsspec.AbstractFileSystem,), {"protocol": ("http", "https")})()
    path = RemotePath(fs, "https://host/data/x.jsonl.gz?X-Signature=abc%2Fdef")
    assert str(path) == "https://host/data/x.jsonl.gz"
    assert (path.name, path.suffix) == ("x.jsonl.gz", ".gz")
    assert os.path.basename(path.path).endswith("def")
