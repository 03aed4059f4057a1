"""The JSON values that represent the values of Arrow columns."""

from __future__ import annotations

import json
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import OutputError
from batchgen.io.output.json_values import check_types, to_lines

BERLIN = pa.timestamp("us", "Europe/Berlin")
FAR_DAYS = [10_957 + 300 * 146_097, 10_957 - 250 * 146_097]  # from 2000-01-01, in cycles of 400 years
STRUCT = pa.struct([("n", pa.int8()), ("at", pa.date32())])


def lines(**columns: Any) -> list[bytes]:
    return list(to_lines(pa.record_batch(columns)))


def values(array: pa.Array) -> list[Any]:
    return [json.loads(line)["x"] for line in lines(x=array)]


@pytest.mark.parametrize(
    ("given", "type", "expected"),
    [
        ([True, None], pa.bool_(), [True, None]),
        ([None, None], pa.null(), [None, None]),
        ([2**64 - 1, 0], pa.uint64(), [2**64 - 1, 0]),
        ([-(2**63)], pa.int64(), [-(2**63)]),
        ([0.1, float("nan"), float("inf"), None], pa.float64(), [0.1, None, None, None]),
        ([0.5, float("nan"), float("-inf")], pa.float16(), [0.5, None, None]),
        (["a", None, ""], pa.large_string(), ["a", None, ""]),
        (["a"], pa.string_view(), ["a"]),
        ([b"\x00\xff", None, b""], pa.binary(), ["AP8=", None, ""]),
        ([b"ab"], pa.binary(2), ["YWI="]),
        ([b"ab"], pa.binary_view(), ["YWI="]),
        ([Decimal("1.50"), None], pa.decimal128(38, 2), ["1.50", None]),
        ([date(2024, 2, 29), None], pa.date32(), ["2024-02-29", None]),
        ([time(3, 4, 5, 6)], pa.time64("us"), ["03:04:05.000006"]),
        ([datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("s"), ["2024-01-02T03:04:05", None]),
        ([1_700_000_000_123_456_789], pa.timestamp("ns"), ["2023-11-14T22:13:20.123456789"]),
        ([datetime(2024, 1, 2, 3, tzinfo=timezone(timedelta(hours=1)))], BERLIN, ["2024-01-02T02:00:00.000000Z"]),
        (FAR_DAYS, pa.date32(), ["122000-01-01", "-98000-01-01"]),
        ([86_400 * day for day in FAR_DAYS], pa.timestamp("s"), ["122000-01-01T00:00:00", "-98000-01-01T00:00:00"]),
        ([timedelta(seconds=2)], pa.duration("ms"), [2000]),
        (["b", None, "b"], pa.dictionary(pa.int8(), pa.string()), ["b", None, "b"]),
        ([[1.0, float("nan")], None, []], pa.list_(pa.float32()), [[1.0, None], None, []]),
        ([[b"a"], None, [None]], pa.large_list(pa.binary()), [["YQ=="], None, [None]]),
        ([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]]),
        ([[1], None], pa.list_view(pa.int8()), [[1], None]),
        (
            [{"n": 1, "at": date(2024, 1, 2)}, None, {}],
            STRUCT,
            [{"n": 1, "at": "2024-01-02"}, None, {"n": None, "at": None}],
        ),
        ([{}, None], pa.struct([]), [{}, None]),
        ([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8()), [[{"key": "a", "value": 1}], None, []]),
        ([[[{"n": 1}]], [None, []]], pa.list_(pa.list_(STRUCT)), [[[{"n": 1, "at": None}]], [None, []]]),
        ([uuid.UUID(int=0)], pa.uuid(), ["AAAAAAAAAAAAAAAAAAAAAA=="]),
    ],
    ids=str,
)
def test_value(given: list[Any], type: pa.DataType, expected: list[Any]) -> None:
    array = pa.array(given, type)
    assert values(array) == expected
    assert values(pa.concat_arrays([pa.nulls(1, type), array]).slice(1)) == expected  # with an offset into the buffers
    check_types(pa.schema([("x", type)]))


def test_line_is_utf8_without_escapes_and_ends_once() -> None:
    assert lines(prompt=["é 😀\u2028\n"], n=[1]) == ['{"prompt":"é 😀\u2028\\n","n":1}\n'.encode()]


def test_text_that_is_not_utf8_has_replacement_characters() -> None:
    offsets, text = pa.array([0, 3, 3, 5], pa.int32()), pa.py_buffer(b"a\xe9bok")
    array = pa.Array.from_buffers(pa.string(), 3, [None, offsets.buffers()[1], text])
    assert values(array) == ["a\ufffdb", "", "ok"]
    inside = pa.ListArray.from_arrays([0, 1, 3], pa.StructArray.from_arrays([array], ["s"]))
    assert values(inside) == [[{"s": "a\ufffdb"}], [{"s": ""}, {"s": "ok"}]]


@pytest.mark.parametrize("type", [pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])])
def test_type_without_a_json_value_is_refused_by_column(type: pa.DataType) -> None:
    for each in (type, pa.list_(type), pa.struct([("inner", type)])):
        with pytest.raises(OutputError, match=r"column 'x' is .*which JSON lines cannot hold; set output\.format"):
            check_types(pa.schema([("prompt", pa.string()), ("x", each)]))


def test_struct_with_two_fields_of_one_name_is_refused() -> None:
    """One of them would be lost."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]).type
    for type in (twice, pa.list_(twice), pa.struct([("b", twice)]), pa.map_(pa.string(), twice)):
        with pytest.raises(OutputError, match="column 'x' has more than one field named 'a'"):
            check_types(pa.schema([("x", type)]))
