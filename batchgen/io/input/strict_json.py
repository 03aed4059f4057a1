"""JSON as input rows may use it: the standard library's parser, without what would later lose or break a value.

Knows text and values; knows no files or lines.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from batchgen.errors import RowError

MAX_DEPTH = 200  # far below Python's recursion limit, so that every value can also be written


def parse(text: str) -> Any:
    """Parse one JSON text. NaN and Infinity are numbers.

    Raises RowError, which does not quote the text, for invalid JSON, a repeated key, or nesting beyond MAX_DEPTH.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not valid JSON at column {error.colno}: {error.msg}") from error
    except ValueError as error:  # Python parses no integer of more than 4,300 digits
        raise RowError("not valid JSON: a number has too many digits") from error
    except RecursionError as error:
        raise RowError(_TOO_DEEP) from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise RowError(_TOO_DEEP)
    return value


def has_lone_surrogate(value: Any) -> bool:
    r"""True if a text in `value` has half a surrogate pair, such as "\ud83d" alone, which UTF-8 cannot encode."""
    try:
        to_text(value).encode()
    except UnicodeEncodeError:
        return True
    return False


def to_text(value: Any) -> str:
    """Return a value as JSON text without Unicode escapes."""
    return json.dumps(value, ensure_ascii=False)


def quote(name: str) -> str:
    """Return a name for a message: quoted, shortened to 80 characters, always valid UTF-8."""
    shown = name if len(name) <= 80 else name[:80] + "…"
    return to_text(shown).encode("utf-8", "backslashreplace").decode()


_TOO_DEEP = f"JSON nested deeper than {MAX_DEPTH} levels"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RowError(f"the key {quote(repeated)} is given twice")
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
