"""Readers on arbitrary content: a file is refused by its name, or its good rows come out unchanged."""

from __future__ import annotations

import gzip
import json
import math
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from batchgen.errors import InputError
from batchgen.io.input.readers import Input, open_input
from batchgen.io.input.rows import Row
from batchgen.io.output.json_values import check_types, to_lines
from batchgen.io.output.writers import write_parts
from batchgen.prompts.prompt import RowKeys
from batchgen.spec.job_spec import InputSpec
from batchgen.spec.user_template import parse_user_template
from tests.examples import examples

UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
few = settings(examples(60), suppress_health_check=UNCHECKED)


def opened(path: Path, **columns: str) -> Input:
    return open_input(InputSpec.model_validate({"path": str(path), **(columns or {"text": "t"})}))


def read(source: Input) -> tuple[list[Row], pa.Table]:
    """Both passes of a run: the rows, and the carried columns as the output holds them."""
    rows = list(source.read_rows())
    table = pa.Table.from_batches(source.read_batches(), source.schema)
    assert table.num_rows == len(rows)
    return rows, table


def read_or_refused(path: Path, **columns: str) -> list[Row]:
    """Return the rows; none if the file is refused, in which case the error must name it."""
    try:
        return read(opened(path, **columns))[0]
    except InputError as error:
        if path.name not in str(error):
            raise
        return []


# JSON lines

texts = st.text(st.characters(), max_size=8)  # any code point, lone surrogates too
scalars = st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats() | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(texts, json_values, max_size=4)
garbage = st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))


def is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def same(value: Any, carried: Any) -> bool:
    """Return whether a carried value matches the row: equal, with null for keys of other rows, or its JSON text."""
    match value, carried:
        case (dict(), dict()):
            return all(same(value.get(key), carried[key]) for key in carried) and value.keys() <= carried.keys()
        case (list(), list()):
            return len(value) == len(carried) and all(map(same, value, carried))
        case (str() | None, _) | (bool(), bool()):
            return bool(value == carried)
        case (_, str()):
            return same(value, json.loads(carried))
        case (bool(), _) | (_, bool()):
            return False
        case (float() | int(), float() | int()):
            return value == carried or (math.isnan(value) and math.isnan(carried))
    return False


@given(lines=st.lists(objects.map(lambda row: json.dumps(row).encode()) | garbage, max_size=6))
@few
def test_good_lines_survive_any_others(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "x.jsonl"
    good = {"t": "é\u2028", "n": 2**60, "f": 0.1}
    path.write_bytes(b"\n".join(part for line in lines for part in (json.dumps(good).encode(), line)) + b"\n")
    rows, table = read(opened(path))
    carried = {row.location: record for row, record in zip(rows, table.to_pylist(), strict=True)}
    for number in range(1, 2 * len(lines), 2):
        assert [row.values for row in rows if row.location == f"x.jsonl line {number}"] == [{"t": "é\u2028"}]
        assert all(same(good[key], carried[f"x.jsonl line {number}"][key]) for key in good)


@given(rows=st.lists(objects, min_size=1, max_size=5))
@few
def test_any_json_is_carried_unchanged(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found, table = read(opened(path))
    assert [row.index for row in found] == [*range(len(rows))]
    pq.write_table(table, tmp_path / "x.parquet") if table.num_columns else None
    carried = pq.read_table(tmp_path / "x.parquet").to_pylist() if table.num_columns else [{} for _ in rows]
    for row, written, result in zip(rows, carried, found, strict=True):
        kept = {key: value for key, value in row.items() if is_text([key, value])}
        assert (result.error is not None) == (kept.keys() != row.keys())
        assert all(same(value, written[key]) for key, value in kept.items())
        assert all(value is None for key, value in written.items() if key not in kept)


@given(content=st.binary(max_size=200), name=st.sampled_from(["x.jsonl", "x.json", "x.jsonl.gz", "x.jsonl.zst"]))
@few
def test_random_bytes_never_crash_the_line_reader(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    read_or_refused(path)


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".zst"):
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return gzip.compress(data) if name.endswith(".gz") else data


@given(name=st.sampled_from(["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"]), data=st.data())
@few
def test_damaged_lines_never_crash_the_reader(tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = packed(name, b"".join(b'{"t": "row %d", "n": [%d, {"a": null}]}\n' % (n, n) for n in range(50)))
    (tmp_path / name).write_bytes(data.draw(damaged(content)))
    read_or_refused(tmp_path / name)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Return the content truncated, or with some of its bits flipped."""

    def flipped(bits: set[int]) -> bytes:
        turned = bytearray(content)
        for bit in bits:
            turned[bit // 8] ^= 1 << bit % 8
        return bytes(turned)

    cut = st.integers(0, len(content) - 1).map(lambda length: content[:length])
    return cut | st.sets(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=4).map(flipped)


# Parquet

plain_values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    **{type: st.integers(-9, 9) for type in (pa.int8(), pa.int16())},
    **{type: st.integers(0, 9) for type in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.float16(): st.floats(width=16),
    **{type: st.text(max_size=5) for type in (pa.string(), pa.large_string(), pa.string_view())},
    **{type: st.binary(max_size=5) for type in (pa.binary(), pa.large_binary(), pa.binary_view())},
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal256(50, 5): st.decimals(-1000, 1000, places=5),
    pa.date32(): st.dates() | st.integers(-(2**31), 2**31 - 1),
    pa.date64(): st.dates(),
    pa.time32("ms"): st.times().map(lambda time: time.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    pa.duration("ns"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us", "Z"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ns"): st.integers(0, 2**62),
    pa.timestamp("ms", "Europe/Berlin"): st.integers(-(10**12), 10**15),  # up to the year 33,658
    pa.duration("s"): st.integers(0, 10**6).map(lambda seconds: timedelta(seconds=seconds)),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b"]),
    pa.uuid(): st.binary(min_size=16, max_size=16),
    pa.json_(): st.sampled_from(["{}", "[1]"]),
}
Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(columns: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    def as_list(column: Column) -> list[Column]:
        type, values = column
        lists = st.lists(st.none() | values, max_size=3)
        return [
            (pa.list_(type), lists),
            (pa.large_list(type), lists),
            (pa.list_(type, 2), st.lists(values, min_size=2, max_size=2)),
            (pa.struct([("a", type), ("b", pa.int64())]), st.fixed_dictionaries({"a": values, "b": st.none()})),
            (pa.map_(pa.string(), type), st.lists(st.tuples(st.text(max_size=3), st.none() | values), max_size=2)),
        ]

    return columns.flatmap(lambda column: st.sampled_from(as_list(column)))


plain_columns = st.sampled_from([*plain_values.items()])
columns = st.recursive(plain_columns, nested, max_leaves=3)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Generate a table with a text column `t` and columns of random types."""
    num_rows = draw(st.integers(0, 6))
    arrays = {"t": pa.array([f"row {n}" for n in range(num_rows)], pa.string())}
    for number, (type, values) in enumerate(draw(st.lists(columns, min_size=1, max_size=3))):
        rows = draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows))
        try:
            arrays[f"c{number}"] = pa.array(rows, type)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
            assume(False)  # Arrow cannot make such a column
    return pa.table(arrays)


def write(table: pa.Table, path: Path, row_group_size: int = 2) -> None:
    try:
        pq.write_table(table, path, row_group_size=row_group_size)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        assume(False)  # Parquet cannot hold it


@given(table=tables(), row_group_size=st.integers(1, 4))
@few
def test_any_parquet_is_carried_unchanged(tmp_path: Path, table: pa.Table, row_group_size: int) -> None:
    path = tmp_path / "x.parquet"
    write(table, path, row_group_size)
    written = pq.read_table(path)
    source = opened(path)
    assert [row.values["t"] for row in source.read_rows()] == table["t"].to_pylist()
    (tmp_path / "out").mkdir(exist_ok=True)
    write_parts(tmp_path / "out", source.read_batches(), source.schema, "parquet", 1_000)
    carried = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert carried.schema.types == written.schema.types
    for name in written.column_names:
        assert plainly(carried[name]) == plainly(written[name])
    check_types(carried.schema)
    lines = [json.loads(line) for batch in carried.to_batches() for line in to_lines(batch)]
    assert [line["t"] for line in lines] == table["t"].to_pylist()


def plainly(column: pa.ChunkedArray) -> list[str]:
    """Return the values as text, so that NaN equals NaN; Arrow formats what Python lacks (years beyond 9999)."""
    with suppress(ValueError, OverflowError):
        return [repr(value) for value in column.to_pylist()]
    return [chunk.slice(n, 1).to_string() for chunk in column.chunks for n in range(len(chunk))]


NAMED = {
    "id": {"id": "c0", "text": "t"},
    "system": {"system": "c0", "prompt": "t"},
    "sampling": {"sampling": "c0", "prompt": "t"},
    "tools": {"tools": "c0", "prompt": "t"},
    "template": {"template": "{% if c0 is not none %}{{ c0 }}{% endif %}"},
    **{setting: {setting: "c0"} for setting in ("text", "prompt", "messages", "token_ids")},
}
BAD_VALUES = ("not valid UTF-8", "not valid JSON", "twice")  # what a value, and no type, can be wrong with


@given(table=tables(), setting=st.sampled_from([*NAMED]))
@few
def test_any_type_may_be_named_as_a_prompt_column(tmp_path: Path, table: pa.Table, setting: str) -> None:
    """Such a column is refused by its name, or its rows have values or errors that name file, row and column."""
    path = tmp_path / "x.parquet"
    write(table, path)
    keys = RowKeys("c0")
    for number, row in enumerate(read_or_refused(path, **NAMED[setting]), start=1):
        if row.error is not None:
            assert row.error.startswith(f'x.parquet row {number}: column "c0": ')
            assert any(words in row.error for words in BAD_VALUES)
        elif setting == "id":
            keys.add(row)
        elif setting == "template":
            parse_user_template(NAMED[setting]["template"]).template.render(row.values)


@pytest.fixture(scope="module")
def mixed_parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "x.parquet"
    table = pa.table(
        {
            "t": [f"row {n}" for n in range(40)],
            "d": pa.array(["a", "b"] * 20).dictionary_encode(),
            "n": [[{"a": n, "b": None}] for n in range(40)],
            "x": [n / 7 for n in range(40)],
        }
    )
    pq.write_table(table, path, row_group_size=16, compression="zstd")
    return path


@given(data=st.data())
@settings(examples(150), suppress_health_check=UNCHECKED)
def test_damaged_parquet_never_upsets_the_reader(tmp_path: Path, mixed_parquet: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(data.draw(damaged(mixed_parquet.read_bytes())))
    read_or_refused(path)


@given(content=st.binary(max_size=100))
@few
def test_random_bytes_never_crash_the_parquet_reader(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1" + content + b"PAR1")
    read_or_refused(path)
