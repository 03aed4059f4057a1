"""BlockTables: the block tables of a step's rows as one array, of which little changes from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchgen.engine.request import Request

Tables = npt.NDArray[np.int64]


class BlockTables:
    """Takes over from the step before what its rows have; nothing is done row by row but what is new.

    While a row is in step after step its table only grows, and copy-on-write may replace its last entry
    (`request_blocks.py`); a row that comes, or comes again, is written whole.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The rows have lost their blocks in the meantime."""
        self._requests: list[Request] = []
        self._tables = np.zeros((1, 1), np.int64)
        self._lengths = np.zeros(1, np.int64)

    def of(self, requests: list[Request]) -> Tables:
        """[rows, longest table], padded with 0; a view that the next call may change."""
        if requests != self._requests:
            self._move(requests)
        lengths = np.array([len(request.block_table) for request in requests])
        last = np.array([request.block_table[-1] for request in requests])
        width = int(lengths.max())
        if width > self._tables.shape[1]:
            self._tables = np.pad(self._tables, ((0, 0), (0, 2 * width - self._tables.shape[1])))
        is_old = (lengths == self._lengths) & (last == self._tables[np.arange(len(requests)), lengths - 1])
        for row in np.flatnonzero(~is_old).tolist():
            first = max(self._lengths[row] - 1, 0)
            self._tables[row, first : lengths[row]] = requests[row].block_table[first:]
        self._lengths = lengths
        return self._tables[:, :width]

    def _move(self, requests: Sequence[Request]) -> None:
        """Rows to their new places; empty ones for those that come."""
        before = {request: row for row, request in enumerate(self._requests)}
        places = np.array([before.get(request, -1) for request in requests])
        comes = places < 0
        self._tables, self._lengths = self._tables[places], self._lengths[places]
        self._tables[comes], self._lengths[comes] = 0, 0
        self._requests = list(requests)
