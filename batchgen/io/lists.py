"""Columns of integer lists as NumPy arrays, without a Python object for every number."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class PlainLists(NamedTuple):
    """Lists of integers, one after the other."""

    values: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]  # of each list


def plain_lists(column: pa.Array) -> PlainLists | None:
    """The lists of a column; None where one of them or of their items is null, or where it is of another type."""
    type = column.type
    if not ((pa.types.is_list(type) or pa.types.is_large_list(type)) and pa.types.is_integer(type.value_type)):
        return None
    values = column.flatten()
    if column.null_count or values.null_count:
        return None
    return PlainLists(values.to_numpy(), np.diff(column.offsets.to_numpy()).astype(np.int64))
