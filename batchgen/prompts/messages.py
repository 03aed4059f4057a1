"""Checks the row values that make a prompt: a text, a chat, or a list of token ids. Knows no template.

Every problem is a RowError that names the column and what it contains; `RowEncoder` adds the row's location.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchgen.errors import RowError
from batchgen.io.input import strict_json
from batchgen.spec.chat_template import reserved_variables

Values = Mapping[str, Any]
# "role" is text, and so is "content", which may be absent beside "tool_calls"; only the template knows other keys.
Message = dict[str, Any]

# Senders of ShareGPT messages, {from, value}, and their roles.
_SENDER_TO_ROLE = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot", "ai"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}


class Chat(NamedTuple):
    """All that a chat template reads of one row."""

    messages: list[Message]
    tools: list[Any] | None  # None: the template gets none, which may differ from an empty list
    documents: list[Any] | None
    kwargs: Mapping[str, Any]  # further variables


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


def check_last_message(messages: list[Message], *, is_continued: bool) -> None:
    """Raise RowError if the last message is the assistant's and is not continued, or the other way round."""
    role = messages[-1]["role"]
    if is_continued and (role != "assistant" or "content" not in messages[-1]):
        what = f"has the role {role!r}" if role != "assistant" else "has no content"
        raise RowError(f"input.continue_final_message continues the assistant's message, but the last one {what}")
    if not is_continued and role == "assistant":
        raise RowError(
            "the last message is the assistant's; set input.continue_final_message: true to continue it, or remove it"
        )


def object_list(values: Values, column: str, name: str) -> list[Any] | None:
    """Return the list of objects in `column`, tools or documents as `name` says, or None if the row has none."""
    objects = values.get(column)
    if objects is None:
        return None
    if not isinstance(objects, list):
        raise RowError(f"column {column!r}: expected a list of {name}, found {describe(objects)}")
    for n, each in enumerate(objects):
        if not isinstance(each, dict):
            raise RowError(f"column {column!r}: {name}[{n}]: expected an object, found {describe(each)}")
    return objects


def template_kwargs(values: Values, column: str) -> Mapping[str, Any]:
    """Return the variables in `column` for the chat template; those that are null are left out."""
    kwargs = values.get(column)
    if not isinstance(kwargs, dict | None):
        raise RowError(f"column {column!r}: expected an object with variables, found {describe(kwargs)}")
    if reserved := reserved_variables(kwargs or {}):
        raise RowError(f"column {column!r}: {reserved[0]} cannot be set here")
    return {name: value for name, value in (kwargs or {}).items() if value is not None}


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
    kept = {key: value for key, value in message.items() if value is not None}
    if "from" in kept and "role" not in kept:
        return _from_share_gpt(kept, where)
    kept["role"] = _text(kept.get("role"), f"{where}.role")
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    if "content" in kept or not calls:
        kept["content"] = _content(kept.get("content"), f"{where}.content")
    return kept


def _from_share_gpt(message: Message, where: str) -> Message:
    sender = _text(message["from"], f"{where}.from")
    if sender not in _SENDER_TO_ROLE:
        raise RowError(f"{where}.from: {sender!r} is none of {', '.join(_SENDER_TO_ROLE)}")
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    return {"role": _SENDER_TO_ROLE[sender], "content": _text(message.get("value"), f"{where}.value"), **others}


def _content(content: Any, where: str) -> str:
    if isinstance(content, list):
        return "".join(_text_part(part, f"{where}[{n}]") for n, part in enumerate(content))
    return _text(content, where)


def _tool_call(call: Any, where: str) -> Any:
    """Return a tool call with arguments that were JSON text as an object; templates would write the text as a text."""
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        return {**call, "function": _tool_call(call["function"], f"{where}.function")}
    if isinstance(call, dict) and isinstance(text := call.get("arguments"), str):
        return {**call, "arguments": _arguments(text, f"{where}.arguments")}
    return call


def _arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():  # a call without arguments
        return {}
    try:
        arguments = strict_json.parse(text)
    except RowError as error:
        raise RowError(f"{where}: {error}") from error
    if not isinstance(arguments, dict):
        raise RowError(f"{where}: expected a JSON object, found {describe(arguments)}")
    return arguments


def _text_part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        found = f"the type {kind!r}" if isinstance(part, dict) else describe(part)
        raise RowError(f'{where}: expected a part of the type "text", found {found}')
    return _text(part.get("text"), f"{where}.text")
