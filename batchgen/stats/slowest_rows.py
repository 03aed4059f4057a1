"""SlowestRows: the few rows that took longest, however many ran."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

_MOST_ROWS = 20


@dataclass(frozen=True, slots=True, order=True)
class RowTime:
    """How long one row took."""

    seconds: float  # from its first admission to its end
    row_index: int  # of the input, from 0
    num_output_tokens: int


class SlowestRows:
    """Keeps the 20 slowest of all rows it is shown."""

    def __init__(self) -> None:
        self._heap: list[RowTime] = []  # the fastest of them first

    def observe(self, row: RowTime) -> None:
        """A row ended."""
        if len(self._heap) < _MOST_ROWS:
            heapq.heappush(self._heap, row)
        else:
            heapq.heappushpop(self._heap, row)

    def rows(self) -> list[RowTime]:
        """Slowest first."""
        return sorted(self._heap, reverse=True)
