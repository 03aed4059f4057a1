"""Prompts, the second form of a row, and the keys of a row's random draws. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchgen.io.temporal import Temporal

if TYPE_CHECKING:
    from batchgen.io.input.rows import Row

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no prompt, or whose prompt cannot run."""

    row_index: int
    error: str
    num_tokens: int | None = None  # of a prompt that cannot run
    by_template: bool = False  # whether a template refused the row


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The prompts of consecutive rows, one after the other."""

    token_ids: npt.NDArray[np.int32]  # [sum of lengths], each id within the model's vocabulary
    lengths: npt.NDArray[np.int64]  # [num_rows], tokens of each row's prompt; 0: a bad row
    bad: Sequence[BadRow] = ()

    def without(self, bad: Mapping[int, BadRow]) -> Prompts:
        """Return the same rows without the prompts of the rows `bad`, which maps an index in `lengths` to its row."""
        is_good = np.ones(len(self.lengths), np.bool_)
        is_good[list(bad)] = False
        token_ids = self.token_ids[np.repeat(is_good, self.lengths)]
        return Prompts(token_ids, self.lengths * is_good, [*self.bad, *bad.values()])


def rng_key(seed: int, row_key: bytes) -> int:
    """Return the 64-bit key of a row's random draws: a hash of the seed and the row key.

    A draw depends on this key, the sample index and the token's position in the completion, and on nothing else.
    """
    return int.from_bytes(blake2b(row_key, digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")


def row_key(row_index: int, id_value: Any) -> bytes:
    """Return what identifies a row in its random draws: its id, or its index if it has none.

    The hash covers kind, type and value, so that the ids `1` and `"1"` and a row without an id at index 1 are three
    different rows.
    """
    kind, value = (b"index", row_index) if id_value is None else (b"id", id_value)
    if isinstance(value, Temporal):
        name, text = value.key
    else:
        name, text = type(value).__name__, value if isinstance(value, str) else repr(value)
    head = f"{name}\0".encode()
    return blake2b(head + text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, person=kind).digest()


def repeated_key(key: bytes, occurrence: int) -> bytes:
    """Return the key of a row whose id `occurrence` earlier rows have, at least one; `key` is that of the first."""
    return blake2b(key, digest_size=KEY_BYTES, person=b"repeated", salt=occurrence.to_bytes(8, "little")).digest()


class RowKeys:
    """Collects the row keys of a job in input order. Takes 16 bytes per row."""

    def __init__(self, id_column: str) -> None:
        self._id_column = id_column
        self._keys = bytearray()

    def add(self, row: Row) -> bytes:
        """Return the key of the next row, valid if no earlier row has the same id (see `repeated`)."""
        key = row_key(row.index, row.values.get(self._id_column))
        self._keys += key
        return key

    def repeated(self) -> Iterator[tuple[int, bytes]]:
        """Yield row index and key of every row whose id an earlier row has; `add` returned the first row's key."""
        halves = np.frombuffer(self._keys, np.uint64).reshape(-1, 2)
        by_key = np.lexsort(halves.T)  # stable: rows with the same id stay in input order
        is_new = np.append(True, (halves[by_key[1:]] != halves[by_key[:-1]]).any(axis=1))[: len(halves)]
        starts = np.flatnonzero(is_new)
        for position in np.flatnonzero(~is_new).tolist():
            occurrence = position - int(starts[np.searchsorted(starts, position) - 1])
            row_index = int(by_key[position])
            yield row_index, repeated_key(halves[row_index].tobytes(), occurrence)
