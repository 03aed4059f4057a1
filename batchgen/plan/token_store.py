"""Token ids of all prompts, concatenated: in memory for a few prompts, in a memory-mapped file for a whole job.

Knows prompts only by position. Stores one flat array of int32 ids and one int64 offset per prompt; of a TokenStore only
the offsets take anonymous memory (8 bytes per prompt).

`shared_lengths` counts the leading tokens that two prompts have in common, for many pairs at once.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from batchgen.errors import OutputError

TokenIds = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


class PackedTokens:
    """Prompts by position: `tokens[3]` is the view `ids[offsets[3] : offsets[4]]`."""

    def __init__(self, ids: TokenIds, offsets: Positions) -> None:
        self.ids = ids
        self.offsets = offsets  # [number of prompts + 1]

    @classmethod
    def pack(cls, prompts: Sequence[npt.ArrayLike]) -> Self:
        """Return a copy of a few prompts, in memory."""
        arrays = [np.empty(0, np.int32), *(np.asarray(prompt, np.int32) for prompt in prompts)]
        return cls(np.concatenate(arrays), np.cumsum([len(ids) for ids in arrays]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> TokenIds:
        return self.ids[self.offsets[position] : self.offsets[position + 1]]

    def lengths(self, positions: Positions) -> Lengths:
        """Return the number of tokens of each of these prompts."""
        return (self.offsets[positions + 1] - self.offsets[positions]).astype(np.int32)


class TokenStore(PackedTokens):
    """PackedTokens in a file: append prompts, then `seal()`, then read. Until it is sealed it appears empty."""

    def __init__(self, path: Path) -> None:
        super().__init__(np.empty(0, np.int32), np.zeros(1, np.int64))
        self._path = path
        self._file = path.open("wb")
        self._ends = array("q", [0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file for writing. Raises OutputError."""
        with self._writing():
            self._file.close()

    def append(self, token_ids: Sequence[int]) -> None:
        """Append one prompt."""
        with self._writing():
            self._write(np.asarray(token_ids, np.int32))
        self._ends.append(self._ends[-1] + len(token_ids))

    def extend(self, token_ids: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Append many prompts: `token_ids` [sum of lengths] concatenated, and the number of tokens of each."""
        ids, ends = np.asarray(token_ids, np.int32), np.cumsum(lengths, dtype=np.int64)
        assert len(ids) == (ends[-1] if len(ends) else 0), "the lengths do not add up to the tokens"
        with self._writing():
            self._write(np.ascontiguousarray(ids))
        self._ends.frombytes((ends + self._ends[-1]).tobytes())

    def seal(self) -> None:
        """End writing; the prompts can be read from now on."""
        with self._writing():
            self._file.close()
        self.offsets = np.frombuffer(self._ends, np.int64)
        if self.offsets[-1]:
            self.ids = self._read()

    def _read(self) -> TokenIds:
        try:
            # A plain array view, because slicing an `np.memmap` takes ten times as long.
            return np.memmap(self._path, np.int32, mode="r").view(np.ndarray)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return np.fromfile(self._path, np.int32)  # a file system that maps no files, such as some of FUSE

    def _write(self, ids: TokenIds) -> None:
        self._file.write(ids.data)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise OSErrors as OutputErrors: the store is in the output folder, and its disk may be full."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written: {error.strerror or error}") from error


_WINDOW = np.arange(32)  # tokens that are compared at a time
_CHUNK = 1 << 13  # pairs that are compared at a time: 1 MiB of tokens, about what a CPU cache holds


def shared_lengths(tokens: PackedTokens, left: Positions, right: Positions, known: Lengths) -> Lengths:
    """Return how many leading tokens prompts left[i] and right[i] share; the first known[i] are known to be equal.

    The store is read in chunks, in the order of the positions in `left`.
    """
    shared = known.astype(np.int32)
    by_position = np.argsort(left)
    for start in range(0, len(left), _CHUNK):
        chunk = by_position[start : start + _CHUNK]
        shared[chunk] = _compare(tokens, left[chunk], right[chunk], shared[chunk])
    return shared


def _compare(tokens: PackedTokens, left: Positions, right: Positions, known: Lengths) -> Lengths:
    shared, limit = known, np.minimum(tokens.lengths(left), tokens.lengths(right))
    active = np.flatnonzero(shared < limit)
    while len(active):
        start, room = shared[active], (limit - shared)[active]
        differs = _windows(tokens, left[active], start) != _windows(tokens, right[active], start)
        num_equal = np.where(differs.any(axis=1), differs.argmax(axis=1), len(_WINDOW))
        shared[active] += np.minimum(num_equal, room).astype(np.int32)
        active = active[(num_equal == len(_WINDOW)) & (room > len(_WINDOW))]
    return shared


def _windows(tokens: PackedTokens, positions: Positions, start: Lengths) -> TokenIds:
    """Return tokens `start` and following, [prompts, window]; behind the end of a prompt the values are arbitrary."""
    return tokens.ids.take((tokens.offsets[positions] + start)[:, None] + _WINDOW, mode="clip")


def next_tokens(tokens: PackedTokens, positions: Positions, index: Lengths) -> TokenIds:
    """Return token index[i] of each prompt; -1 if the prompt ends before it."""
    token = tokens.ids.take(tokens.offsets[positions] + index, mode="clip")
    token[index >= tokens.lengths(positions)] = -1
    return token
