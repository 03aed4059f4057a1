"""Expansion of paths, folders, globs and lists to data files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from batchgen.errors import InputError
from batchgen.io.input.files import find_files

PARQUET = b"PAR1.\x01\0\0\0PAR1"  # its footer has one byte


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PARQUET if name.endswith(".parquet") else b"{}\n")


def found(path: str | list[str]) -> list[str]:
    return [file.name for file in find_files(path, "auto").files]


def test_folder_gives_data_files_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "part-10.parquet", "part-2.parquet", "part-0.parquet", "part-1.parquet")
    touch(tmp_path, "_SUCCESS", ".part-0.parquet.crc", "README.md", "_temporary/part-3.parquet")
    assert found(str(tmp_path)) == ["part-0.parquet", "part-1.parquet", "part-2.parquet", "part-10.parquet"]


def test_folder_is_read_at_any_depth_and_names_stay_distinct(tmp_path: Path) -> None:
    touch(tmp_path, "b/x.jsonl", "a/x.jsonl")
    assert found(str(tmp_path)) == ["a/x.jsonl", "b/x.jsonl"]


def test_circular_links_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.jsonl")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    assert found(str(tmp_path)) == ["x.jsonl"]


def test_list_keeps_its_order_and_globs_are_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "z.jsonl", "a-10.jsonl", "a-9.jsonl", "_a-1.jsonl")
    assert found([f"{tmp_path}/z.jsonl", f"{tmp_path}/*a-*.jsonl"]) == ["z.jsonl", "a-9.jsonl", "a-10.jsonl"]


def test_recursive_glob_skips_unfinished_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.jsonl", "_temporary/y.jsonl")
    assert found(f"{tmp_path}/**/*.jsonl") == ["x.jsonl"]


def test_glob_that_matches_only_folders_gives_their_files(tmp_path: Path) -> None:
    touch(tmp_path, "day=1/x.jsonl", "day=2/x.jsonl", "month=1/x.jsonl")
    assert found(f"{tmp_path}/day=*") == ["day=1/x.jsonl", "day=2/x.jsonl"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_glob(tmp_path: Path) -> None:
    touch(tmp_path, "x[1].jsonl", "x1.jsonl")
    assert found(f"{tmp_path}/x[1].jsonl") == ["x[1].jsonl"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing.jsonl", "missing.jsonl: no such file"),
        ("no-*.jsonl", "no-*.jsonl: no file matches"),
        ("empty", "empty: the folder holds no data file"),
        ("mixed", "all need one format"),
        ("a.txt", "set input.format"),
        ("x.jsonl.bz2", ".bz2 is not supported; compress it as .gz or .zst"),
        ("packed", ".xz is not supported"),
        ("x.gz", "set input.format"),
        ("x.parquet.gz", "Parquet in .gz is not supported; decompress it"),
        ("plain.jsonl.gz", "not gzip data, although the name says so"),
        ("cut.jsonl.gz", "the gzip data is cut off"),
        ("inner.jsonl.gz", "not JSON lines but Parquet"),
        ("twice.jsonl.gz", "not JSON lines but gzip data"),
        ("named.parquet", "not a Parquet file"),
        ("cut.parquet", "cut off"),
        ("named.jsonl", "not JSON lines but Parquet"),
        ("wide.jsonl", "not JSON lines but UTF-16 text"),
        ("empty.parquet", "the file is empty"),
        ("tiny.parquet", "cut off"),
        ("hidden.parquet", "is encrypted, as a whole or in some columns"),
        ("footer.parquet", "states a footer of 4,294,967,295 bytes, and there are only 1"),
        ("none.parquet", "states a footer of 0 bytes"),
    ],
)
def test_refused(tmp_path: Path, path: str, words: str) -> None:
    touch(
        tmp_path,
        "mixed/a.jsonl",
        "mixed/b.parquet",
        "empty/_SUCCESS",
        "a.txt",
        "packed/b.jsonl.xz",
        "x.jsonl.bz2",
        "x.gz",
    )
    touch(tmp_path, "plain.jsonl.gz", "x.parquet.gz")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}\n")[:-1])
    (tmp_path / "inner.jsonl.gz").write_bytes(gzip.compress(b"PAR1....PAR1"))
    (tmp_path / "twice.jsonl.gz").write_bytes(gzip.compress(gzip.compress(b"{}\n")))
    (tmp_path / "named.parquet").write_bytes(b"{}\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1....")
    (tmp_path / "named.jsonl").write_bytes(PARQUET)
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "tiny.parquet").write_bytes(b"PAR1")
    (tmp_path / "hidden.parquet").write_bytes(b"PARE.\x01\0\0\0PARE")
    (tmp_path / "footer.parquet").write_bytes(b"PAR1.\xff\xff\xff\xffPAR1")
    (tmp_path / "none.parquet").write_bytes(b"PAR1.\0\0\0\0PAR1")
    (tmp_path / "wide.jsonl").write_bytes("{}".encode("utf-16"))
    with pytest.raises(InputError) as error:
        find_files(str(tmp_path / path), "auto")
    assert words in str(error.value)
    assert path in str(error.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.json", "x.jsonl.gz", "x.jsonl.zst"])
def test_a_pointer_of_git_lfs_is_refused_with_the_command_that_fetches_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 92000000\n")
    with pytest.raises(InputError, match=f"^{path}: a Git LFS pointer, not the file itself; .*git lfs pull$"):
        find_files(str(path), "auto")


def test_compressed_and_plain_lines_are_read_together(tmp_path: Path) -> None:
    touch(tmp_path, "part-10.jsonl", "_part-3.jsonl.gz", "notes.txt.gz")
    (tmp_path / "part-9.ndjson.gz").write_bytes(gzip.compress(b"{}\n"))
    (tmp_path / "part-2.JSON.GZ").write_bytes(gzip.compress(b"{}\n"))
    assert found(str(tmp_path)) == ["part-2.JSON.GZ", "part-9.ndjson.gz", "part-10.jsonl"]


def test_format_jsonl_reads_any_compressed_name(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"{}\n"))
    assert find_files(str(tmp_path / "x.gz"), "jsonl").format == "jsonl"


@pytest.mark.parametrize("path", ["", []])
def test_empty_path_is_refused(path: str | list[str]) -> None:
    with pytest.raises(InputError, match=r"input\.path is empty"):
        find_files(path, "auto")


def test_one_file_named_twice_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "x.jsonl")
    with pytest.raises(InputError, match="twice"):
        find_files([str(tmp_path), f"{tmp_path}/x.jsonl"], "auto")


def test_format_overrides_the_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    assert find_files(str(tmp_path / "a.txt"), "jsonl").format == "jsonl"


def test_a_file_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    touch(tmp_path, "caf\udce9.jsonl")
    [name] = found(str(tmp_path))
    assert name.encode() == rb"caf\xe9.jsonl"
