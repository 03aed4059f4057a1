"""Arrow types that come in several layouts, and nested columns as Python lists.

Knows how values are nested; what the innermost values become is up to the caller, who passes a `Convert`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Convert: TypeAlias = Callable[[pa.Array], list[Any]]  # returns one value per row; None for null


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


def is_extension(type: pa.DataType) -> bool:
    """True for a type that is stored as another one."""
    return isinstance(type, pa.BaseExtensionType)


def lists(array: pa.Array, convert: Convert) -> list[list[Any] | None]:
    """Return the lists of a list array of any layout, with the items that `convert` returns."""
    items = iter(convert(array.flatten()))  # without those of null lists
    return [None if length is None else list(islice(items, length)) for length in _plain(pc.list_value_length(array))]


def objects(array: pa.Array, convert: Convert) -> list[dict[str, Any] | None]:
    """Return the structs of a struct array as dicts, with the values that `convert` returns."""
    names = array.type.names
    fields = [convert(field) for field in array.flatten()]
    return [
        {name: field[i] for name, field in zip(names, fields, strict=True)} if is_valid else None
        for i, is_valid in enumerate(_plain(array.is_valid()))
    ]


def pairs(array: pa.Array, convert: Convert) -> list[list[tuple[Any, Any]] | None]:
    """Return the maps of a map array as lists of (key, value)."""
    entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    return lists(entries, lambda structs: [*zip(*map(convert, structs.flatten()), strict=True)])


def day_counts(array: pa.Array) -> list[int | None]:
    """Return the days since 1970-01-01 of an array of dates."""
    if types.is_date32(array.type):
        return _plain(array.cast(pa.int32()))
    return [None if count is None else count // 86_400_000 for count in _plain(array.cast(pa.int64()))]


def repeated_field(type: pa.DataType) -> str | None:
    """Return the name that two fields of one struct have anywhere in a type, since no dict can hold both."""
    if is_extension(type):
        return repeated_field(type.storage_type)
    names = [field.name for field in type] if types.is_struct(type) else []
    own = next((name for name in names if names.count(name) > 1), None)
    inner = (found for child in _children(type) if (found := repeated_field(child)) is not None)
    return own if own is not None else next(inner, None)


def _children(type: pa.DataType) -> Iterator[pa.DataType]:
    if types.is_dictionary(type):
        yield type.value_type
    yield from (type.field(i).type for i in range(type.num_fields))


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values
