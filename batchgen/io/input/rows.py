"""Row: one input record on its way to a prompt. Knows nothing of files beyond the words that name its place."""

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

    `values` holds only the columns that make the prompt (and the id); the carried columns are read again when the
    output is written, so that a job's memory does not grow with the width of its input. A key that the record lacks
    (JSONL) is absent from `values`; a null is None.
    """

    index: int  # position in the whole input, from 0
    location: str  # for messages: "data.jsonl line 3" or "data.parquet row 3", counted from 1 within the file
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None  # why the record could not be read; `values` is then empty


class RowLocations:
    """Where the rows of an input come from, for messages; rows that follow each other in a file take a few bytes."""

    def __init__(self) -> None:
        self._indices = array("q")  # of the first rows of such runs, ascending
        self._numbers = array("q")  # theirs within their file
        self._kinds: list[str] = []  # "data.jsonl line"

    def add(self, index: int, kind: str, number: int) -> None:
        """Row `index` of the input is `number` of its file, from 1; so are, until the next call, those behind it."""
        if not self._kinds or self._kinds[-1] != kind or number - self._numbers[-1] != index - self._indices[-1]:
            self._indices.append(index)
            self._numbers.append(number)
            self._kinds.append(kind)

    def __getitem__(self, index: int) -> str:
        """What `Row.location` was, of any row that has been read."""
        run = bisect_right(self._indices, index) - 1
        return f"{self._kinds[run]} {self._numbers[run] + index - self._indices[run]}"


class RowBatch(Protocol):
    """Consecutive rows of an input, as many as its reader holds at once: some hundreds, fewer where rows are large."""

    def __len__(self) -> int: ...

    def rows(self, *, without: str | None = None) -> Iterator[Row]:
        """The rows with the values that make their prompts; a row that cannot be read has an `error` instead.

        The column `without` need not be among the values: turning it to Python would take long.
        """

    def column(self, name: str) -> pa.Array | None:
        """One value a row as Arrow holds them; None where the values did not come as Arrow (JSON lines)."""
