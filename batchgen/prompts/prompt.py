"""Prompts, the second of a row's forms, and the keys that its random draws depend on. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from batchgen.io.input.rows import Row

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no prompt, or none that can be run."""

    index: int
    error: str
    num_tokens: int | None = None  # of a prompt that is too long
    by_template: bool = False  # a template refused the row


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Consecutive rows as the model reads them."""

    token_ids: npt.NDArray[np.int32]  # of one prompt after the other, each id within the model's vocabulary
    lengths: npt.NDArray[np.int64]  # tokens of each row's prompt; 0: a bad row
    bad: Sequence[BadRow] = ()

    def without(self, bad: Mapping[int, BadRow]) -> Prompts:
        """The same rows, of which those at the places that are keys of `bad` have no prompt any more."""
        is_good = np.ones(len(self.lengths), np.bool_)
        is_good[list(bad)] = False
        token_ids = self.token_ids[np.repeat(is_good, self.lengths)]
        return Prompts(token_ids, self.lengths * is_good, [*self.bad, *bad.values()])


def row_key(row_index: int, id_value: Any) -> bytes:
    """What a row is known by, for its random draws: its id where it has one, else its position.

    Kind, type and value are hashed, so that the ids `1` and `"1"` and a row without an id at position 1 are three
    different rows.
    """
    kind, value = (b"index", row_index) if id_value is None else (b"id", id_value)
    text = value if isinstance(value, str) else repr(value)
    head = f"{type(value).__name__}\0".encode()
    return blake2b(head + text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, person=kind).digest()


def repeated_key(key: bytes, occurrence: int) -> bytes:
    """The key of a row with the id of `occurrence` rows before it, which is at least one."""
    return blake2b(key, digest_size=KEY_BYTES, person=b"repeated", salt=occurrence.to_bytes(8, "little")).digest()


class RowKeys:
    """The keys of all rows of a job, in input order. 16 bytes a row."""

    def __init__(self, id_column: str) -> None:
        self._id_column = id_column
        self._keys = bytearray()

    def add(self, row: Row) -> bytes:
        """The key of the next row, if no row before has the same id: that is found out at the end."""
        key = row_key(row.index, row.values.get(self._id_column))
        self._keys += key
        return key

    def repeated(self) -> Iterator[tuple[int, bytes]]:
        """Index and key of every row whose id was there before: the key that `add` gave is that of the first one."""
        halves = np.frombuffer(self._keys, np.uint64).reshape(-1, 2)
        by_key = np.lexsort(halves.T)  # stable: rows with one id stay in input order
        is_new = np.append(True, (halves[by_key[1:]] != halves[by_key[:-1]]).any(axis=1))[: len(halves)]
        starts = np.flatnonzero(is_new)
        for position in np.flatnonzero(~is_new).tolist():
            occurrence = position - int(starts[np.searchsorted(starts, position) - 1])
            index = int(by_key[position])
            yield index, repeated_key(halves[index].tobytes(), occurrence)


def rng_key(seed: int, row_key: bytes) -> int:
    """64 bits: seed and key hashed together."""
    return int.from_bytes(blake2b(row_key, digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")
