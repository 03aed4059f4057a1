"""Arrow columns as the Python values that row ids, templates and messages see. Knows types; knows no settings.

Booleans, numbers, text, bytes, decimals, lists, structs (dicts) and UUIDs are Python's own values. Dates are too, in
the years that Python has; other dates, times, timestamps, durations and intervals are `Temporal`. A dictionary's or an
extension type's value is that of its storage. No value depends on an installed package or on the platform.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from batchgen.errors import RowError
from batchgen.io.arrow_types import (
    Convert,
    day_counts,
    is_bytes,
    is_extension,
    is_list,
    is_text,
    lists,
    objects,
    pairs,
)
from batchgen.io.input import strict_json
from batchgen.io.temporal import date_of, duration, interval, time_of_day, timestamp


def as_python(array: pa.Array) -> list[Any]:
    """Return the values of a column; a map is a list of (key, value). Raises RowError for text that is not UTF-8."""
    return _convert(array, _PYTHON)


def as_template_values(array: pa.Array) -> list[Any]:
    """Return the same values with bytes decoded as UTF-8. Raises RowError."""
    return _convert(array, _TEMPLATE)


def as_json(array: pa.Array) -> list[Any]:
    """Return values of the types that JSON has, as messages hold them.

    Bytes are text, a map is an object, a column of Arrow's JSON type holds what the JSON says, a decimal is a number
    unless that would round it, and dates and times are ISO text. A null field of a struct is left out, since all rows
    share one struct. Raises RowError.
    """
    return _convert(array, _JSON)


def as_messages(array: pa.Array) -> list[Any]:
    """Return lists of messages: values as of `as_json`, but with the null fields of the messages themselves."""
    if not is_list(array.type):
        return as_json(array)
    return lists(array, lambda items: objects(items, as_json) if types.is_struct(items.type) else as_json(items))


_Rule = tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Convert], list[Any]]]


def _convert(array: pa.Array, rules: tuple[_Rule, ...]) -> list[Any]:
    convert = next((convert for is_kind, convert in rules if is_kind(array.type)), _leaf(_plain))
    return convert(array, lambda inner: _convert(inner, rules))


def _leaf(convert: Convert) -> Callable[[pa.Array, Convert], list[Any]]:
    return lambda array, _: convert(array)


def _each(convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _texts(array: pa.Array) -> list[Any]:
    try:
        return _plain(array)
    except UnicodeDecodeError as error:  # Arrow does not validate strings when it reads them
        raise _not_utf8(error) from error


def decode(value: bytes) -> str:
    """Return bytes as text. Raises RowError."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from error


def _not_utf8(error: UnicodeDecodeError) -> RowError:
    return RowError(f"not valid UTF-8 at byte {error.start + 1}")


def _temporals(array: pa.Array) -> list[Any]:
    type = array.type
    if types.is_date(type):
        return _each(date_of, day_counts(array))
    if types.is_interval(type):
        return _each(lambda value: interval(*value), _plain(array))
    counts = _plain(array.cast(pa.int32() if types.is_time32(type) else pa.int64()))
    if types.is_time(type):
        return _each(lambda count: time_of_day(count, type.unit), counts)
    if types.is_duration(type):
        return _each(lambda count: duration(count, type.unit), counts)
    return _each(lambda count: timestamp(count, type.unit, is_utc=type.tz is not None), counts)


def _numbers(array: pa.Array) -> list[Any]:
    return _each(int if array.type.scale <= 0 else _float_if_exact, _plain(array))


def _float_if_exact(value: Decimal) -> float | str:
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _parsed(array: pa.Array) -> list[Any]:
    return _each(parse_json, _texts(array.storage))


def parse_json(text: str) -> Any:
    """Return what a JSON text says. Raises RowError."""
    value = strict_json.parse(text)
    if strict_json.has_lone_surrogate(value):
        raise RowError("the JSON text has half a surrogate pair")
    return value


def _without_nulls(array: pa.Array, convert: Convert) -> list[Any]:
    found = objects(array, convert)
    return _each(lambda each: {name: value for name, value in each.items() if value is not None}, found)


def _maps(array: pa.Array, convert: Convert) -> list[Any]:
    return _each(_object if not types.is_nested(array.type.key_type) else list, pairs(array, convert))


def _object(entries: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(entries)
    if len(found) != len(entries):
        names = [key for key, _ in entries]
        repeated = next(name for name in names if names.count(name) > 1)
        raise RowError(f"a map has the key {strict_json.quote(str(repeated))} twice")
    return found


def _is_any_bytes(type: pa.DataType) -> bool:
    return is_bytes(type) or bool(types.is_fixed_size_binary(type))


def _is_temporal(type: pa.DataType) -> bool:
    return bool(types.is_temporal(type))


_DECODED: _Rule = (_is_any_bytes, _leaf(lambda array: _each(decode, _plain(array))))
_PYTHON: tuple[_Rule, ...] = (
    (lambda type: isinstance(type, pa.UuidType | pa.Bool8Type), _leaf(_plain)),
    (is_extension, lambda array, convert: convert(array.storage)),
    (types.is_dictionary, lambda array, convert: convert(array.dictionary_decode())),
    (types.is_float16, _leaf(lambda array: _plain(array.cast(pa.float32())))),
    (_is_temporal, _leaf(_temporals)),
    (is_text, _leaf(_texts)),
    (types.is_struct, objects),
    (types.is_map, pairs),
    (is_list, lists),
)
_TEMPLATE: tuple[_Rule, ...] = (_DECODED, *_PYTHON)
_JSON: tuple[_Rule, ...] = (
    _DECODED,
    (lambda type: isinstance(type, pa.JsonType), _leaf(_parsed)),
    (lambda type: isinstance(type, pa.UuidType), _leaf(lambda array: _each(str, _plain(array)))),
    (_is_temporal, _leaf(lambda array: _each(str, _temporals(array)))),
    (types.is_decimal, _leaf(_numbers)),
    (types.is_struct, _without_nulls),
    (types.is_map, _maps),
    *_PYTHON,
)
