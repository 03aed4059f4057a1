"""TokenStore: the token ids of every prompt, on disk and mapped. Knows rows by number only.

One flat file of int32 ids; an int64 offset and an int64 row index a prompt stay in memory (16 bytes a prompt).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]


class TokenLists(Protocol):
    """Prompts by position: a TokenStore, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> TokenIds: ...


class TokenStore:
    """Append prompts, then `seal()`, then read them by position: `store[3]` is a view of the mapped file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._offsets = array("q", [0])
        self._ids: TokenIds = np.empty(0, np.int32)

    def append(self, token_ids: Sequence[int]) -> int:
        """Store one prompt; returns its position."""
        np.asarray(token_ids, np.int32).tofile(self._file)
        self._offsets.append(self._offsets[-1] + len(token_ids))
        return len(self._offsets) - 2

    def seal(self) -> None:
        """No more prompts; they can be read from now on."""
        self._file.close()
        if self._offsets[-1]:
            # A plain view of the map: slicing `np.memmap` itself costs ten times as much.
            self._ids = np.memmap(self._path, np.int32, mode="r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> TokenIds:
        return self._ids[self._offsets[position] : self._offsets[position + 1]]
