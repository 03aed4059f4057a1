"""Prompt: the second of a row's four forms, and the key that its random draws depend on. Knows no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.io.rows import Row

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row as the model reads it."""

    row_index: int
    token_ids: list[int]  # not empty, each within the model's vocabulary
    key: bytes  # KEY_BYTES long, see `row_key`


def row_key(row_index: int, id_value: Any, occurrence: int = 0) -> bytes:
    """What a row is known by, for its random draws: its id where it has one, else its position.

    Kind, type, value and `occurrence` (how many rows before had the same id) are hashed, so that the ids `1` and
    `"1"`, a row without an id at position 1, and the second row with the id `1` are four different rows.
    """
    kind, value = (b"index", row_index) if id_value is None else (b"id", id_value)
    text = value if isinstance(value, str) else repr(value)
    head = f"{type(value).__name__}\0{occurrence}\0".encode()
    return blake2b(head + text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, person=kind).digest()


class RowKeys:
    """Gives every row of a job its key, in input order, and counts the ids that come again.

    Memory: one 16-byte digest in a dict, about 140 bytes, a row with an id; nothing for a row without one.
    """

    def __init__(self, id_column: str | None) -> None:
        self._id_column = id_column
        self._first_key_to_count: dict[bytes, int] = {}

    def next(self, row: Row) -> bytes:
        """The key of the next row."""
        id_value = None if self._id_column is None else row.values.get(self._id_column)
        key = row_key(row.index, id_value)
        if id_value is None:
            return key
        occurrence = self._first_key_to_count.get(key, 0)
        self._first_key_to_count[key] = occurrence + 1
        return key if occurrence == 0 else row_key(row.index, id_value, occurrence)
