"""The columns that make the prompt, and their values as plain Python.

Knows the settings of `input:`; knows no file format and validates no prompt (the prompts room does).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.io.input import strict_json
from batchgen.spec.user_template import parse_system_template, parse_user_template

if TYPE_CHECKING:
    from batchgen.spec.job_spec import InputSpec

CHAT_SETTINGS = ("tools", "documents", "chat_template_kwargs")  # a column, or the value of every row
_SETTINGS = ("id", "system", "prompt", "messages", "text", "token_ids", "sampling", *CHAT_SETTINGS)


@dataclass(frozen=True, slots=True)
class PromptColumns:
    """The columns from which a job makes its prompts, and the id column."""

    settings: Mapping[str, str]  # column -> the setting under `input:` that names it

    def plain(self, column: str, value: Any, *, null_is_absent: bool = False) -> Any:
        """Convert a value of one of the columns: bytes become text, messages and sampling values become dicts.

        `null_is_absent`: a null field inside a message means that it lacks the field, as in Arrow, where all rows share
        one struct. An id that is not text, such as the bytes of a UUID, stays bytes. Raises RowError.
        """
        setting = self.settings[column]
        if isinstance(value, bytes):
            value = _decode_if_text(value) if setting == "id" else _decode(value)
        if setting == "sampling":
            if isinstance(value, str):
                value, null_is_absent = _parse_json(value), False
            return _sampling_values(value, null_is_absent)
        if setting in CHAT_SETTINGS:
            if isinstance(value, str):
                return _parse_json(value)
            return _drop_inner_nulls(value, depth=2) if null_is_absent else value
        if setting != "messages":
            return value
        if isinstance(value, str):
            return _drop_null_keys(_parse_json(value))
        return _drop_null_keys(_drop_inner_nulls(value) if null_is_absent else value)


def prompt_columns(spec: InputSpec) -> PromptColumns:
    """Return the columns that the job file names, directly or in its template. Raises SpecError for a bad template."""
    named = {column: name for name in _SETTINGS if isinstance(column := getattr(spec, name), str)}
    in_template = () if spec.template is None else sorted(parse_user_template(spec.template).columns)
    in_system = () if spec.system_template is None else sorted(parse_system_template(spec.system_template).columns)
    in_templates = dict.fromkeys(in_system, "system_template") | dict.fromkeys(in_template, "template")
    return PromptColumns({**in_templates, **named})


def missing_column(location: object, setting: str, column: str, present: Iterable[str]) -> InputError:
    """Return the error for a column that is named but does not exist, with the nearest name."""
    names = list(present)
    nearest = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"{location}: no column {column!r} (input.{setting}); {hint}the columns are {', '.join(names)}")


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not valid UTF-8 at byte {error.start + 1}") from error


def _decode_if_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _parse_json(text: str) -> Any:
    value = strict_json.parse(text)
    if strict_json.has_lone_surrogate(value):
        raise RowError("the JSON text has half a surrogate pair")
    return value


def _sampling_values(value: Any, null_is_absent: bool) -> Any:
    """Drop null values, since Arrow rows share one struct, but not inside a `structured` value given as JSON."""
    plain = _drop_inner_nulls(value, depth=2)
    if not null_is_absent and isinstance(plain, dict) and "structured" in plain:
        plain["structured"] = value["structured"]
    return plain


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


def _drop_inner_nulls(value: Any, depth: int = 0) -> Any:
    """Return the value with bytes as text and without the null keys of dicts at depth 2 or more."""
    if isinstance(value, dict):
        return {k: _drop_inner_nulls(v, depth + 1) for k, v in value.items() if v is not None or depth < 2}
    if isinstance(value, list):
        return [_drop_inner_nulls(each, depth + 1) for each in value]
    return _decode(value) if isinstance(value, bytes) else value


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
