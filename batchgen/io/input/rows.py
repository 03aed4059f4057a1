"""Row: one input record, from which a prompt is made. Knows nothing of files beyond the text of a row's location."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Row:
    """One input record.

    `values` holds only the columns that make the prompt, and the id; the carried columns are read again when the
    output is written, so that a job's memory does not grow with the width of its input. A key that the record lacks
    (JSONL) is absent from `values`; a null is None.
    """

    index: int  # position in the whole input, from 0
    location: str  # for messages: "data.jsonl line 3" or "data.parquet row 3", counted from 1 within the file
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None  # why the record could not be read; `values` is then empty


class RowLocations:
    """The locations of the rows of an input, for messages. Consecutive rows of a file are stored as one run."""

    def __init__(self) -> None:
        self._indices = array("q")  # index of the first row of each run, ascending
        self._numbers = array("q")  # number of that row within its file
        self._kinds: list[str] = []  # "data.jsonl line"

    def add(self, index: int, kind: str, number: int) -> None:
        """Record that row `index` is number `number` (from 1) of its file; the rows up to the next call follow it."""
        if not self._kinds or self._kinds[-1] != kind or number - self._numbers[-1] != index - self._indices[-1]:
            self._indices.append(index)
            self._numbers.append(number)
            self._kinds.append(kind)

    def __getitem__(self, index: int) -> str:
        """Return the `Row.location` of any row that has been read."""
        run = bisect_right(self._indices, index) - 1
        return f"{self._kinds[run]} {self._numbers[run] + index - self._indices[run]}"


class RowBatch(Protocol):
    """Consecutive rows of an input that its reader holds at once: some hundreds, fewer where rows are large."""

    def __len__(self) -> int: ...

    def rows(self, *, without: str | None = None) -> Iterator[Row]:
        """Yield the rows with the values that make their prompts; a row that cannot be read has an `error` instead.

        The values may lack the column `without`, whose conversion to Python would be slow.
        """

    def column(self, name: str) -> pa.Array | None:
        """Return a column as an Arrow array, one value per row; None if the rows are not Arrow data (JSON lines)."""
