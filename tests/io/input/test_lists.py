"""Integer lists as arrays: what is plain, and what is left to be read row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchgen.io.input.columns import plain_lists


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list], ids=lambda make: make.__name__)
@pytest.mark.parametrize("item", [pa.int32(), pa.uint16(), pa.int64()], ids=str)
def test_values_and_lengths(list_type: Any, item: pa.DataType) -> None:
    found = plain_lists(pa.array([[1, 2, 3], [], [4]], list_type(item)))
    assert found is not None
    assert (found.values.tolist(), found.lengths.tolist()) == ([1, 2, 3, 4], [3, 0, 1])


def test_slice_has_only_its_own_values() -> None:
    found = plain_lists(pa.array([[1], [2, 3], [4, 5], [6]], pa.list_(pa.int32())).slice(1, 2))
    assert found is not None
    assert (found.values.tolist(), found.lengths.tolist()) == ([2, 3, 4, 5], [2, 2])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], None], pa.list_(pa.int32())),
        pa.array([[1, None]], pa.list_(pa.int32())),
        pa.array([[1.0]], pa.list_(pa.float64())),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([[1]], pa.list_view(pa.int32())),
        pa.array([None], pa.null()),
    ],
    ids=["null list", "null item", "floats", "fixed size", "view", "nulls"],
)
def test_anything_else_is_not_plain(column: pa.Array) -> None:
    assert plain_lists(column) is None
