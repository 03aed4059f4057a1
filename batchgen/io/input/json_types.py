"""Arrow types of JSON columns, inferred over all rows. Knows values and types; knows no files.

Per column:  null < bool, int64, float64, string, list<T>, struct<...>;  a column that fits none of these is string:
text is kept, other values become their JSON text. No type is guessed from the content of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from batchgen.io.input import strict_json

MAX_KEYS = 100  # an object with more keys over all rows is a map, not a struct; it is kept as JSON text
MAX_DEPTH = 32  # deeper values are kept as JSON text; Parquet readers stop at about 100 levels

_NAMES = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "struct"}
_SCALARS = {
    frozenset({"bool"}): pa.bool_(),
    frozenset({"int"}): pa.int64(),
    frozenset({"int", "inexact"}): pa.int64(),
    frozenset({"float"}): pa.float64(),
    frozenset({"int", "float"}): pa.float64(),
}


class Shape:
    """The kinds of the values observed so far under one key or in one list. Nulls are ignored."""

    __slots__ = ("_depth", "_fields", "_item", "_kinds")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._kinds: set[str] = set()  # of _NAMES; "inexact" and "huge" ints; "text": kept as JSON text
        self._item: Shape | None = None
        self._fields: dict[str, Shape] = {}

    def observe(self, value: Any) -> None:
        if value is None:
            return
        name = _NAMES[type(value)]
        self._kinds.add(name)
        if name == "int":
            self._observe_int(value)
        elif name == "list":
            self._observe_list(value)
        elif name == "struct":
            self._observe_struct(value)

    def arrow_type(self) -> pa.DataType:
        if not self._kinds:
            return pa.null()
        if self._kinds == {"list"}:
            return pa.list_(self._item.arrow_type() if self._item else pa.null())
        if self._kinds == {"struct"} and self._fields:  # Parquet has no struct without fields
            return pa.struct([(name, shape.arrow_type()) for name, shape in self._fields.items()])
        return _SCALARS.get(frozenset(self._kinds), pa.string())

    def _observe_int(self, value: int) -> None:
        if not -(2**63) <= value < 2**63:
            self._kinds.add("huge")
        elif int(float(value)) != value:
            self._kinds.add("inexact")

    def _observe_list(self, items: list[Any]) -> None:
        if self._has_room():
            self._item = self._item or Shape(self._depth + 1)
            for item in items:
                self._item.observe(item)

    def _observe_struct(self, values: dict[str, Any]) -> None:
        if self._has_room():
            _observe_fields(self._fields, values, self._depth + 1)
            if len(self._fields) > MAX_KEYS:
                self._kinds.add("text")
                self._fields.clear()

    def _has_room(self) -> bool:
        if self._depth == MAX_DEPTH:
            self._kinds.add("text")
        return "text" not in self._kinds


class ColumnTypes:
    """The types of all columns, in the order in which the columns first appeared; those of `last` are at the end."""

    def __init__(self, last: Collection[str] = ()) -> None:
        self._columns: dict[str, Shape] = {}
        self._last = last

    def __len__(self) -> int:
        return len(self._columns)

    def observe(self, row: Mapping[str, Any]) -> None:
        _observe_fields(self._columns, row, 0)

    def schema(self) -> pa.Schema:
        names = sorted(self._columns, key=lambda name: name in self._last)
        return pa.schema([(name, self._columns[name].arrow_type()) for name in names])


def to_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to one batch of the `schema` inferred from them; a key that a row lacks is null."""
    row_type = pa.struct(list(schema))
    convert = _converter(row_type)
    return pa.RecordBatch.from_struct_array(pa.array([convert(row) for row in rows], row_type))


def _observe_fields(fields: dict[str, Shape], values: Mapping[str, Any], depth: int) -> None:
    for name, value in values.items():
        if (shape := fields.get(name)) is None:
            shape = fields[name] = Shape(depth)
        shape.observe(value)


def _converter(type: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts JSON values to what `pa.array` accepts for this type."""
    if pa.types.is_string(type):
        return lambda value: value if value is None or isinstance(value, str) else strict_json.to_text(value)
    if pa.types.is_float64(type):
        return lambda value: None if value is None else float(value)
    if pa.types.is_list(type):
        item = _converter(type.value_type)
        return lambda value: None if value is None else [item(each) for each in value]
    if pa.types.is_struct(type):
        fields = [(field.name, _converter(field.type)) for field in type]
        return lambda value: None if value is None else {name: field(value.get(name)) for name, field in fields}
    return lambda value: value
