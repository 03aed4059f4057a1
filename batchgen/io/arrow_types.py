"""Kinds of Arrow types that come in several layouts. Knows types; knows no values."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types


def is_list(type: pa.DataType) -> bool:
    """True for lists of any layout."""
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(type) for is_kind in kinds)


def is_text(type: pa.DataType) -> bool:
    """True for strings of any layout."""
    return any(is_kind(type) for is_kind in (types.is_string, types.is_large_string, types.is_string_view))


def is_bytes(type: pa.DataType) -> bool:
    """True for bytes of variable length, of any layout."""
    return any(is_kind(type) for is_kind in (types.is_binary, types.is_large_binary, types.is_binary_view))
