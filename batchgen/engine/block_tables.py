"""BlockTables: the block tables of a step's rows as one array, of which little changes from step to step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


class BlockTables:
    """Takes over from the step before what its rows have; nothing is done row by row but what is new.

    A request's table is the same list as long as it keeps its blocks; that list only grows, but copy-on-write may
    replace its last entry (`request_blocks.py`). So of a list that was there in the step before, all entries before
    the last one are known; another list is written whole.
    """

    def __init__(self) -> None:
        self._lists: list[list[int]] = []  # kept, so that no other list gets the id of one of them
        self._tables = np.zeros((1, 1), np.int64)
        self._lengths = np.zeros(1, np.int64)

    def of(self, lists: list[list[int]]) -> Array:
        """[rows, longest table], padded with 0; a view that the next call may change."""
        self._move(lists)
        lengths = np.array([len(table) for table in lists])
        last = np.array([table[-1] for table in lists])
        width = int(lengths.max())
        if width > self._tables.shape[1]:
            self._tables = np.pad(self._tables, ((0, 0), (0, 2 * width - self._tables.shape[1])))
        is_old = (lengths == self._lengths) & (last == self._tables[np.arange(len(lists)), lengths - 1])
        for row in np.flatnonzero(~is_old).tolist():
            first = max(self._lengths[row] - 1, 0)
            self._tables[row, first : lengths[row]] = lists[row][first:]
        self._lengths = lengths
        return self._tables[:, :width]

    def _move(self, lists: list[list[int]]) -> None:
        """Rows to their new places; empty ones for those that come."""
        before, now = ([id(table) for table in each] for each in (self._lists, lists))
        self._lists = lists
        if before == now:
            return
        known = {table: row for row, table in enumerate(before)}
        places = np.array([known.get(table, -1) for table in now])
        comes = places < 0
        self._tables, self._lengths = self._tables[places], self._lengths[places]
        self._tables[comes], self._lengths[comes] = 0, 0
