"""Arrow columns to JSON lines. Knows which JSON value represents which Arrow type; knows no files.

Numbers, booleans, text, lists and structs are kept. NaN and infinity become null, since JSON has neither; decimals,
dates and times become ISO text, timestamps with a time zone in UTC; durations become integers in their unit; bytes
become base64; a map becomes a list of {key, value}.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from batchgen.errors import OutputError
from batchgen.io.arrow_types import is_bytes, is_list, is_text


def to_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield one JSON line in UTF-8 per row, with every column. The types must have passed `check_types`."""
    columns = [_to_json(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        row = dict(zip(batch.schema.names, values, strict=True))
        yield json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def check_types(schema: pa.Schema) -> None:
    """Raise OutputError for a column whose type no JSON value represents, such as an interval or a union."""
    for field in schema:
        try:
            _to_json(pa.nulls(0, field.type))
        except NotImplementedError as error:
            raise OutputError(
                f"column {field.name!r} is {field.type}, which JSON lines cannot hold; "
                "set output.format: parquet, or leave the column out of the input"
            ) from error


def _to_json(array: pa.Array) -> list[Any]:
    for is_kind, convert in _CONVERSIONS:
        if is_kind(array.type):
            return convert(array)
    raise NotImplementedError(f"no JSON value for {array.type}")


def _floats(array: pa.Array) -> list[Any]:
    return _plain(pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type)))


def _texts(array: pa.Array) -> list[Any]:
    try:
        return _plain(array)
    except UnicodeDecodeError:  # Arrow does not validate the strings that it reads from Parquet
        values = _plain(array.cast(pa.large_binary()))
        return [None if value is None else value.decode("utf-8", "replace") for value in values]


def _bytes(array: pa.Array) -> list[Any]:
    return [None if value is None else b64encode(value).decode() for value in _plain(array)]


def _timestamps(array: pa.Array) -> list[Any]:
    utc = "" if array.type.tz is None else "Z"
    texts = _as_text(array.cast(pa.timestamp(array.type.unit)))  # Arrow stores timestamps with a time zone in UTC
    return [None if text is None else text.replace(" ", "T") + utc for text in texts]


def _objects(array: pa.Array) -> list[Any]:
    names = array.type.names
    fields = [_to_json(field) for field in array.flatten()]
    return [
        {name: field[i] for name, field in zip(names, fields, strict=True)} if is_valid else None
        for i, is_valid in enumerate(_plain(array.is_valid()))
    ]


def _lists(array: pa.Array) -> list[Any]:
    items = iter(_to_json(array.flatten()))  # without those of null lists
    return [None if length is None else list(islice(items, length)) for length in _plain(pc.list_value_length(array))]


def _map(array: pa.Array) -> list[Any]:
    return _lists(array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field]))))


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _as_text(array: pa.Array) -> list[Any]:
    return _plain(array.cast(pa.string()))


def _any_of(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda type: any(is_kind(type) for is_kind in kinds)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (lambda type: isinstance(type, pa.BaseExtensionType), lambda array: _to_json(array.storage)),
    (types.is_dictionary, lambda array: _to_json(array.dictionary_decode())),
    (_any_of(types.is_null, types.is_boolean, types.is_integer), _plain),
    (types.is_floating, _floats),
    (is_text, _texts),
    (_any_of(is_bytes, types.is_fixed_size_binary), _bytes),
    (_any_of(types.is_decimal, types.is_date, types.is_time), _as_text),
    (types.is_timestamp, _timestamps),
    (types.is_duration, lambda array: _plain(array.cast(pa.int64()))),
    (types.is_struct, _objects),
    (types.is_map, _map),
    (is_list, _lists),
)
