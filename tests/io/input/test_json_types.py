"""Types of JSON columns, inferred over all rows."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.io.input.json_types import ColumnTypes, to_batch

BIG = 2**53 + 1  # the first integer that float64 cannot hold
INT_A, INT_B = (pa.field(name, pa.int64()) for name in "ab")


def column(values: list[Any]) -> pa.Array:
    types = ColumnTypes()
    rows = [{"x": value} for value in values]
    for row in rows:
        types.observe(row)
    return to_batch(rows, types.schema()).column("x")


@pytest.mark.parametrize(
    ("values", "type", "written"),
    [
        ([None, None], pa.null(), [None, None]),
        ([True, None], pa.bool_(), [True, None]),
        ([1, BIG], pa.int64(), [1, BIG]),
        ([1, 0.5], pa.float64(), [1.0, 0.5]),
        ([2**60, 0.5], pa.float64(), [2.0**60, 0.5]),
        ([BIG, 0.5], pa.string(), ["9007199254740993", "0.5"]),
        ([2**63, -1], pa.string(), ["9223372036854775808", "-1"]),
        ([-(2**63)], pa.int64(), [-(2**63)]),
        (["2024-01-01", None], pa.string(), ["2024-01-01", None]),
        ([1, "x"], pa.string(), ["1", "x"]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["é", ["é"]], pa.string(), ["é", '["é"]']),
        ([[1], [], None, [None]], pa.list_(pa.int64()), [[1], [], None, [None]]),
        ([[], []], pa.list_(pa.null()), [[], []]),
        ([[1], ["x"]], pa.list_(pa.string()), [["1"], ["x"]]),
        ([[1], 2], pa.string(), ["[1]", "2"]),
        ([{"a": 1}, {"b": 2}], pa.struct([INT_A, INT_B]), [{"a": 1, "b": None}, {"a": None, "b": 2}]),
        ([{"a": {"b": 1}}, {"a": 2}], pa.struct([("a", pa.string())]), [{"a": '{"b": 1}'}, {"a": "2"}]),
        ([{}, {}], pa.string(), ["{}", "{}"]),
        ([[{}]], pa.list_(pa.string()), [["{}"]]),
        ([{}, {"a": 1}], pa.struct([INT_A]), [{"a": None}, {"a": 1}]),
    ],
)  # fmt: skip
def test_type_and_values(values: list[Any], type: pa.DataType, written: list[Any]) -> None:
    array = column(values)
    assert array.type == type
    assert array.to_pylist() == written


def test_an_object_with_too_many_keys_is_json_text() -> None:
    values = [{f"key{i}": i} for i in range(101)]
    assert column(values).to_pylist() == [json.dumps(value) for value in values]
    assert pa.types.is_struct(column(values[:100]).type)


def test_too_deep_values_become_json_text() -> None:
    value: Any = 1
    for _ in range(150):
        value = [value]
    type = column([value]).type
    depth = 0
    while pa.types.is_list(type):
        type, depth = type.value_type, depth + 1
    assert (depth, type) == (32, pa.string())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, min_size=1, max_size=6))
def test_nothing_is_lost_whatever_the_values(values: list[Any]) -> None:
    array = column(values)
    for value, written in zip(values, array.to_pylist(), strict=True):
        assert contains(written, value), (array.type, value, written)


def contains(written: Any, value: Any) -> bool:
    """Return whether `written` is the value, possibly with keys of other rows as nulls, or its JSON text."""
    if isinstance(value, dict) and isinstance(written, dict):
        return all(contains(written[key], value.get(key)) for key in {*written, *value})
    if isinstance(value, list) and isinstance(written, list):
        return len(value) == len(written) and all(map(contains, written, value))
    return bool(written == value) or (value is not None and written == json.dumps(value, ensure_ascii=False))
