"""Columns in the names of folders, and folders of tables whose files are not all of their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.errors import InputError
from batchgen.io.input.files import find_files
from batchgen.io.input.folders import partition_of
from batchgen.io.input.readers import Input, open_input
from batchgen.spec.job_spec import InputSpec
from tests import object_store
from tests.examples import examples

NULL = "__HIVE_DEFAULT_PARTITION__"


def write(folder: Path, name: str, **columns: object) -> Path:
    """Write a file of one row, by its name Parquet or JSON lines; a prompt is always there."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"prompt": "x", **columns}
    if name.endswith(".jsonl"):
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    return path


def opened(path: str | Path | list[str], **settings: str) -> Input:
    return open_input(InputSpec.model_validate({"path": path if isinstance(path, list) else str(path), **settings}))


def partitions(path: str | Path | list[str]) -> list[Mapping[str, str | None]]:
    return [file.partition for file in find_files(path if isinstance(path, list) else str(path), "auto").files]


def test_folders_between_the_input_and_a_file_give_columns(tmp_path: Path) -> None:
    write(tmp_path, "y=1/raw/m=007/a.jsonl")
    write(tmp_path, f"y=2/raw/m={NULL}/b.jsonl")
    assert partitions(tmp_path) == [{"y": "1", "m": "007"}, {"y": "2", "m": None}]
    assert partitions(f"{tmp_path}/y=*/**/*.jsonl") == partitions(tmp_path)


@pytest.mark.parametrize("path", ["", "y=1", "y=1/m=2", "y=1/m=2/a.jsonl", "y=1/*/a.jsonl", "*=1/m=2"])
def test_a_file_has_the_same_columns_however_it_is_named(tmp_path: Path, path: str) -> None:
    write(tmp_path / "run=1/data", "y=1/m=2/a.jsonl")
    assert partitions(tmp_path / "run=1/data" / path) == [{"y": "1", "m": "2"}]


def test_a_bracket_in_the_path_is_no_wildcard(tmp_path: Path) -> None:
    write(tmp_path / "run=1/[x]", "y=1/a.jsonl")
    assert partitions(f"{tmp_path}/run=1/[[]x]/y=*/a.jsonl") == [{"y": "1"}]


@given(name=st.text(min_size=1), value=st.text().filter(lambda value: value != NULL))
@examples(200)
def test_names_and_values_are_decoded(name: str, value: str) -> None:
    folder = f"{quote(name, safe='')}={quote(value, safe='')}"
    assert partition_of(Path("/d", folder, "a.jsonl"), Path("/d")) == {name: value}


@pytest.mark.parametrize("folder", ["d", "=x", "_d"])
def test_other_folders_give_no_column(folder: str) -> None:
    assert partition_of(Path("/data", folder, "a=b.jsonl"), Path("/data")) == {}


@pytest.mark.parametrize(("folders", "words"), [("a=1/x/a=2", "named a="), ("a=%ff", "'a=%ff' is not UTF-8")])
def test_names_that_give_no_column_are_refused(tmp_path: Path, folders: str, words: str) -> None:
    write(tmp_path, f"{folders}/x.jsonl")
    with pytest.raises(InputError, match=words):
        partitions(tmp_path)


def test_files_with_different_keys_have_no_such_columns_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a=1/x.jsonl")
    write(tmp_path, "b=1/y.jsonl")
    assert partitions(tmp_path) == [{}, {}]
    (message,) = caplog.messages
    assert f"{tmp_path}/a=1/x.jsonl has a, {tmp_path}/b=1/y.jsonl has b" in message


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_columns_are_carried_behind_the_files_own_and_can_be_named(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, f"lang=de/a.{suffix}", n=1)
    write(tmp_path, f"lang={NULL}/b.{suffix}", n=2, late="z")
    source = opened(tmp_path, template="{{ lang }}{{ prompt }}", id="lang")
    assert [row.values["lang"] for row in source.read_rows()] == [None, "de"]
    table = pa.Table.from_batches(source.read_batches(), source.schema)
    assert table.column_names[-1] == "lang"
    assert table.schema.field("lang").type == pa.string()
    assert table.to_pylist() == [
        {"prompt": "x", "n": 2, "late": "z", "lang": None},
        {"prompt": "x", "n": 1, "late": None, "lang": "de"},
    ]


def test_a_line_that_cannot_be_read_has_the_column_too(tmp_path: Path) -> None:
    write(tmp_path, "lang=de/a.jsonl").write_bytes(b"{\n")
    source = opened(tmp_path, prompt="prompt")
    assert [row.error for row in source.read_rows()] != [None]
    assert pa.Table.from_batches(source.read_batches(), source.schema).to_pylist() == [{"lang": "de"}]
    assert source.missing_columns() == {}


SAME = [("7", "7"), (7, "7"), (7, "007"), (1.5, "1.5"), (True, "true"), (None, NULL), ("é", "%C3%A9")]
OTHER = [("8", "7"), ("7", "007"), (7, "8"), (7, "x"), (True, "false"), (None, "7"), ("7", NULL), ([7], "7")]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize(("value", "name"), SAME, ids=str)
def test_a_files_own_column_may_say_the_same(tmp_path: Path, suffix: str, value: object, name: str) -> None:
    write(tmp_path, f"key={name}/a.{suffix}", key=value)
    source = opened(tmp_path, prompt="prompt", id="key")
    assert [row.values["key"] for row in source.read_rows()] == [value]
    assert pa.Table.from_batches(source.read_batches(), source.schema)["key"].to_pylist() == [value]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize(("value", "name"), OTHER, ids=str)
def test_a_files_own_column_that_says_otherwise_is_refused(
    tmp_path: Path, suffix: str, value: object, name: str
) -> None:
    path = write(tmp_path, f"key={name}/a.{suffix}", key=value)
    number = "row 1" if suffix == "parquet" else "line 1"
    with pytest.raises(InputError, match=rf"^{path} {number}: the folder name key=... differs from the"):
        list(opened(tmp_path, prompt="prompt").read_rows())


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_without_the_column_has_it_as_the_others(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, f"key=1/a.{suffix}", key=1)
    write(tmp_path, f"key=2/b.{suffix}")
    source = opened(tmp_path, prompt="prompt")
    list(source.read_rows())
    keys = pa.Table.from_batches(source.read_batches(), source.schema)["key"]
    assert keys.to_pylist() == ([1, 2] if suffix == "parquet" else ["1", "2"])  # numbers and text are text in JSON


def test_a_folder_that_other_files_types_cannot_hold_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "key=1/a.parquet", key=1)
    path = write(tmp_path, "key=x/b.parquet")
    with pytest.raises(InputError, match=f"^{path}: the folder name key=... gives no int64"):
        list(opened(tmp_path, prompt="prompt").read_rows())


def test_a_dictionary_column_is_compared_by_its_values(tmp_path: Path) -> None:
    path = write(tmp_path, "key=b/a.parquet")
    pq.write_table(pa.table({"prompt": ["x", "y"], "key": pa.array(["b", "b"]).dictionary_encode()}), path)
    assert len(list(opened(tmp_path, prompt="prompt").read_rows())) == 2
    pq.write_table(pa.table({"prompt": ["x", "y"], "key": pa.array(["b", "c"]).dictionary_encode()}), path)
    with pytest.raises(InputError, match="row 2: the folder name"):
        list(opened(tmp_path, prompt="prompt").read_rows())


# Tables

TABLES = {
    "Delta": ["_delta_log/00000000000000000001.json"],
    "Hudi": [".hoodie/hoodie.properties"],
    "Iceberg": ["metadata/v1.metadata.json", "metadata/version-hint.text"],
    "an Iceberg": ["metadata/00000-a.metadata.json", "metadata/snap-1.avro"],
}
ROWS = ["data/day=1/part-0.parquet", "data/day=2/part-1.parquet"]


def make_table(folder: Path, kind: str) -> None:
    for name in ROWS:
        write(folder, name)
    for name in TABLES[kind]:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}\n")


def make_remote_table(folder: Path, kind: str) -> None:
    """Copy such a table to the store, as s3://b/lake/t."""
    make_table(folder / "t", kind)
    fs = fsspec.filesystem("s3")
    for path in (folder / "t").rglob("*"):
        if path.is_file():
            fs.pipe_file(f"b/lake/t/{path.relative_to(folder / 't')}", path.read_bytes())


PLACES = ["", "/t", "/t/data", "/t/data/day=1", "/*/data/*/*.parquet", "/t/data/day=*", "/t/**/*.parquet"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_refused_from_every_side(tmp_path: Path, kind: str, place: str) -> None:
    make_table(tmp_path / "t", kind)
    with pytest.raises(InputError) as error:
        find_files(f"{tmp_path}{place}", "auto")
    assert f": {tmp_path}/t is a" in str(error.value)
    assert kind in str(error.value)
    assert "list the files one by one" in str(error.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_in_a_store_is_refused_from_every_side(tmp_path: Path, kind: str, place: str) -> None:
    object_store.install(tmp_path / "store")
    make_remote_table(tmp_path, kind)
    with pytest.raises(InputError) as error:
        find_files(f"s3://b/lake{place}", "auto")
    assert "b/lake/t is a" in str(error.value)
    assert kind in str(error.value)


def test_a_table_behind_a_link_is_refused(tmp_path: Path) -> None:
    make_table(tmp_path / "t", "Delta")
    (tmp_path / "link").symlink_to(tmp_path / "t/data/day=1")
    with pytest.raises(InputError, match="Delta"):
        find_files(str(tmp_path / "link"), "auto")


@pytest.mark.parametrize("kind", TABLES)
def test_the_files_of_a_table_can_be_listed(tmp_path: Path, kind: str) -> None:
    make_table(tmp_path / "t", kind)
    assert partitions([f"{tmp_path}/t/{name}" for name in ROWS]) == [{"day": "1"}, {"day": "2"}]
    object_store.install(tmp_path / "store")
    make_remote_table(tmp_path, kind)
    assert partitions([f"s3://b/lake/t/{name}" for name in ROWS]) == [{"day": "1"}, {"day": "2"}]


def test_a_folder_called_metadata_is_no_table(tmp_path: Path) -> None:
    write(tmp_path, "part-0.parquet")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/notes.avro").touch()
    assert len(find_files(str(tmp_path), "auto").files) == 1


def test_a_folder_of_a_column_may_begin_with_an_underscore(tmp_path: Path) -> None:
    write(tmp_path, "_lang=de/a.jsonl")
    write(tmp_path, "_temporary/b.jsonl")
    assert partitions(tmp_path) == [{"_lang": "de"}]
