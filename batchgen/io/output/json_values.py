"""Arrow columns to JSON lines. Knows which JSON value represents which Arrow type; knows no files.

Numbers, booleans, text, lists and structs are kept. NaN and infinity become null, since JSON has neither; decimals,
dates and times become ISO text, timestamps with a time zone in UTC; durations become integers in their unit; bytes
become base64; a map becomes a list of {key, value}.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from batchgen.errors import OutputError
from batchgen.io.arrow_types import (
    day_counts,
    is_bytes,
    is_extension,
    is_list,
    is_text,
    lists,
    objects,
    pairs,
    repeated_field,
)
from batchgen.io.temporal import date_text, timestamp


def to_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield one JSON line in UTF-8 per row, with every column. The types must have passed `check_types`."""
    columns = [_to_json(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        row = dict(zip(batch.schema.names, values, strict=True))
        yield json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def check_types(schema: pa.Schema) -> None:
    """Raise OutputError for a column whose type no JSON value represents: an interval, a union, two equal names."""
    for field in schema:
        name = repeated_field(field.type)
        if name is not None:
            raise OutputError(
                f"column {field.name!r} has more than one field named {name!r}, which JSON lines cannot hold; "
                "set output.format: parquet, or rename the field"
            )
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


def _dates(array: pa.Array) -> list[Any]:
    return _in_any_year(_as_text(array), day_counts(array), date_text)


def _timestamps(array: pa.Array) -> list[Any]:
    naive = array.cast(pa.timestamp(array.type.unit))  # Arrow stores timestamps with a time zone in UTC
    counts = _plain(naive.cast(pa.int64()))
    texts = _in_any_year(_as_text(naive), counts, lambda count: timestamp(count, naive.type.unit, is_utc=False).text)
    utc = "" if array.type.tz is None else "Z"
    return [None if text is None else text.replace(" ", "T") + utc for text in texts]


def _in_any_year(texts: list[Any], counts: list[Any], text_of: Callable[[int], str]) -> list[Any]:
    """Replace what Arrow writes for years beyond 32767, "<value out of range: ...>"."""
    is_lost = [text is not None and text.startswith("<") for text in texts]
    return [text_of(n) if lost else text for text, n, lost in zip(texts, counts, is_lost, strict=True)]


def _map(array: pa.Array) -> list[Any]:
    maps = pairs(array, _to_json)
    return [None if entries is None else [{"key": k, "value": v} for k, v in entries] for entries in maps]


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _as_text(array: pa.Array) -> list[Any]:
    return _plain(array.cast(pa.string()))


def _any_of(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda type: any(is_kind(type) for is_kind in kinds)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (is_extension, lambda array: _to_json(array.storage)),
    (types.is_dictionary, lambda array: _to_json(array.dictionary_decode())),
    (_any_of(types.is_null, types.is_boolean, types.is_integer), _plain),
    (types.is_floating, _floats),
    (is_text, _texts),
    (_any_of(is_bytes, types.is_fixed_size_binary), _bytes),
    (_any_of(types.is_decimal, types.is_time), _as_text),
    (types.is_date, _dates),
    (types.is_timestamp, _timestamps),
    (types.is_duration, lambda array: _plain(array.cast(pa.int64()))),
    (types.is_struct, lambda array: objects(array, _to_json)),
    (types.is_map, _map),
    (is_list, lambda array: lists(array, _to_json)),
)
