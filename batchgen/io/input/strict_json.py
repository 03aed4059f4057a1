"""JSON as input rows may use it: the standard library's reader, less what would later lose or break a value.

Knows text and values; knows no files or lines.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from batchgen.errors import RowError

MAX_DEPTH = 200  # far below Python's recursion limit, so that what was read can also be written


def parse(text: str) -> Any:
    """Value of one JSON text. NaN and Infinity are numbers.

    Raises RowError, without the text in it, for what is not JSON, a doubled key, and nesting deeper than MAX_DEPTH.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not valid JSON at column {error.colno}: {error.msg}") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise RowError("not readable JSON: a number has too many digits") from error
    except RecursionError as error:
        raise RowError(_TOO_DEEP) from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise RowError(_TOO_DEEP)
    return value


def has_lone_surrogate(value: Any) -> bool:
    r"""True if some text in `value` has half a surrogate pair, such as "\ud83d" alone: no UTF-8 file can hold it."""
    try:
        to_text(value).encode()
    except UnicodeEncodeError:
        return True
    return False


def to_text(value: Any) -> str:
    """JSON text of a value, in readable Unicode."""
    return json.dumps(value, ensure_ascii=False)


def quote(name: str) -> str:
    """A name as a message may show it: quoted, of bearable length, always valid UTF-8."""
    shown = name if len(name) <= 80 else name[:80] + "…"
    return to_text(shown).encode("utf-8", "backslashreplace").decode()


_TOO_DEEP = f"JSON nested deeper than {MAX_DEPTH} levels"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        doubled = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RowError(f"the key {quote(doubled)} is given twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [child for each in level for child in _children(each)]
    return depth


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
