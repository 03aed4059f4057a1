"""The columns that make the prompt: where they are, and their values as plain Python.

Knows the settings of `input:`; knows no file format and validates no prompt (the prompts room does).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.arrow_types import Convert
from batchgen.io.input.arrow_values import as_json, as_messages, as_python, as_template_values, parse_json
from batchgen.spec.user_template import parse_system_template, parse_user_template

if TYPE_CHECKING:
    from batchgen.spec.job_spec import InputSpec

CHAT_SETTINGS = ("tools", "documents", "chat_template_kwargs")  # a column, or the value of every row
_SETTINGS = ("id", "system", "prompt", "messages", "text", "token_ids", "sampling", *CHAT_SETTINGS)
_MAX_NAMES = 10_000  # among which the nearest is looked for
# Setting -> how its column is read from Arrow, if not as a template's.
_CONVERT: dict[str, Convert] = {
    "id": as_python,
    "token_ids": as_python,
    "messages": as_messages,
    **dict.fromkeys(("sampling", *CHAT_SETTINGS), as_json),
}


@dataclass(frozen=True, slots=True)
class PromptColumns:
    """The columns from which a job makes its prompts, and the id column.

    A name with dots is a column of that name, or else a field in a struct or an object: `body.messages`.
    """

    settings: Mapping[str, str]  # column -> the setting under `input:` that names it

    def values(self, column: str, array: pa.Array) -> list[Any]:
        """Return the values of one of the columns, which `array` holds. Raises RowError if one cannot be used."""
        convert = _CONVERT.get(self.settings[column], as_template_values)
        return [self.plain(column, value) for value in convert(array)]

    def plain(self, column: str, value: Any) -> Any:
        """Convert a value of one of the columns: JSON text becomes what it says. Raises RowError.

        An id that is not text, such as the bytes of a hash, stays bytes.
        """
        setting = self.settings[column]
        if setting == "id" and isinstance(value, bytes):
            return _decode_if_text(value)
        if setting in ("messages", "sampling", *CHAT_SETTINGS) and isinstance(value, str):
            value = parse_json(value)
        if setting == "messages":
            return _drop_null_keys(value)
        return _sampling_values(value) if setting == "sampling" else value


def prompt_columns(spec: InputSpec) -> PromptColumns:
    """Return the columns that the job file names, directly or in its template. Raises SpecError for a bad template."""
    named = {column: name for name in _SETTINGS if isinstance(column := getattr(spec, name), str)}
    in_template = () if spec.template is None else sorted(parse_user_template(spec.template).columns)
    in_system = () if spec.system_template is None else sorted(parse_system_template(spec.system_template).columns)
    in_templates = dict.fromkeys(in_system, "system_template") | dict.fromkeys(in_template, "template")
    return PromptColumns({**in_templates, **named})


ABSENT: Final = object()


def find_value(record: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column in a JSON object; ABSENT if the object lacks it."""
    if column in record:
        return record[column]
    for name, rest in _splits(column):
        inner = record.get(name)
        if isinstance(inner, Mapping) and (found := find_value(inner, rest)) is not ABSENT:
            return found
    return ABSENT


def find_path(fields: Sequence[pa.Field], column: str) -> tuple[int, ...] | None:
    """Return the indices that lead to a column: one for each level of structs. None if there is no such column."""
    index = {field.name: i for i, field in enumerate(fields)}
    if column in index:
        return (index[column],)
    for name, rest in _splits(column):
        inner = None if name not in index else find_path(inner_fields(fields[index[name]]), rest)
        if inner is not None:
            return (index[name], *inner)
    return None


def missing_column(location: object, setting: str, column: str, fields: Sequence[pa.Field]) -> InputError:
    """Return the error for a column that is named but does not exist, with what exists of it and the nearest name."""
    nearest = difflib.get_close_matches(column, islice(_dotted_names(fields), _MAX_NAMES), n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"{location}: no column {column!r} (input.{setting}); {hint}{_what_exists(fields, column)}")


def _splits(column: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to split a name at one of its dots, the longest first part first."""
    parts = column.split(".")
    for n in range(len(parts) - 1, 0, -1):
        yield ".".join(parts[:n]), ".".join(parts[n:])


def inner_fields(field: pa.Field) -> list[pa.Field]:
    """Return the fields of a struct column; none of any other."""
    return list(field.type) if pa.types.is_struct(field.type) else []


def _dotted_names(fields: Sequence[pa.Field], prefix: str = "") -> Iterator[str]:
    for field in fields:
        yield prefix + field.name
    for field in fields:
        yield from _dotted_names(inner_fields(field), f"{prefix}{field.name}.")


def _what_exists(fields: Sequence[pa.Field], column: str) -> str:
    """Name the deepest part of a dotted name that exists, and what is in it."""
    for name, _ in _splits(column):
        path = find_path(fields, name)
        if path is not None:
            field = reduce(lambda outer, i: outer.type.field(i), path[1:], fields[path[0]])
            inner = ", ".join(each.name for each in inner_fields(field))
            return f"{name!r} has the fields {inner}" if inner else f"{name!r} is {field.type}, which has no fields"
    return f"the columns are {', '.join(field.name for field in fields)}"


def _decode_if_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _sampling_values(value: Any) -> Any:
    """Drop null values, since all rows of a struct column have the same keys, but not inside a `structured` value."""
    plain = _drop_nulls(value)
    if isinstance(plain, dict) and "structured" in plain:
        plain["structured"] = value["structured"]
    return plain


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


def _drop_null_keys(messages: Any) -> Any:
    """Return messages without their null keys. A null `content` is kept: the prompts room refuses it by name."""
    if not isinstance(messages, list):
        return messages
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"}
        if isinstance(message, dict)
        else message
        for message in messages
    ]


class PlainLists(NamedTuple):
    """Lists of integers, concatenated."""

    values: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]  # of each list


def plain_lists(column: pa.Array) -> PlainLists | None:
    """Return the integer lists of a column; None if the type differs or if a list or an item is null."""
    type = column.type
    if not ((pa.types.is_list(type) or pa.types.is_large_list(type)) and pa.types.is_integer(type.value_type)):
        return None
    values = column.flatten()
    if column.null_count or values.null_count:
        return None
    return PlainLists(values.to_numpy(), np.diff(column.offsets.to_numpy()).astype(np.int64))
