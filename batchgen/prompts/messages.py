"""Checks the row values that make a prompt: a text, a list of messages, or a list of token ids. Knows no template.

Every problem is a RowError that names the column and what it contains; `RowEncoder` adds the row's location.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchgen.errors import RowError

Values = Mapping[str, Any]
Message = dict[str, Any]  # "role" and "content" are text; only the template knows other keys


def text_value(values: Values, column: str) -> str:
    """Return the text in `column`. Raises RowError if it is missing or is not text."""
    return _text(_present(values, column), f"column {column!r}")


def chat_of(system: str | None, user: str) -> list[Message]:
    """Return a chat of one user turn, after the system message unless that is None; an empty one is a message."""
    turns = [{"role": "user", "content": user}]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def system_value(values: Values, column: str | None) -> str | None:
    """Return the system message of a row, or None if the row has no such column, key or value."""
    if column is None or values.get(column) is None:
        return None
    return text_value(values, column)


def message_list(values: Values, column: str) -> list[Message]:
    """Return the messages in `column` without null keys, and with the text parts of a content joined."""
    messages = _present(values, column)
    if not isinstance(messages, list):
        raise RowError(f"column {column!r}: expected a list of messages, found {describe(messages)}")
    if not messages:
        raise RowError(f"column {column!r}: no messages")
    return [_message(message, f"column {column!r}: messages[{n}]") for n, message in enumerate(messages)]


def token_id_list(values: Values, column: str) -> list[int]:
    """Return the token ids in `column`. Raises RowError unless it is a list of integers."""
    token_ids = _present(values, column)
    if not isinstance(token_ids, list):
        raise RowError(f"column {column!r}: expected a list of token ids, found {describe(token_ids)}")
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int:  # a bool is an int but no token id
            raise RowError(f"column {column!r}: token_ids[{position}] is {describe(token_id)}, not an integer")
    return token_ids


def describe(value: Any) -> str:
    """Return what a value is, in the terms of a data file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a value of type {type(value).__name__}"


def _present(values: Values, column: str) -> Any:
    if column not in values:
        raise RowError(f"column {column!r} is missing")
    return values[column]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{where}: expected text, found {describe(value)}")
    return value


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise RowError(f"{where}: expected an object with role and content, found {describe(message)}")
    role = _text(message.get("role"), f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{where}.content[{n}]") for n, part in enumerate(content))
    kept = {key: value for key, value in message.items() if value is not None}
    return kept | {"role": role, "content": _text(content, f"{where}.content")}


def _text_part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        found = f"the type {kind!r}" if isinstance(part, dict) else describe(part)
        raise RowError(f'{where}: expected a part of the type "text", found {found}')
    return _text(part.get("text"), f"{where}.text")
