"""The door through which rows come in. Knows which reader serves which format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from batchgen.io.input.columns import prompt_columns
from batchgen.io.input.files import find_files
from batchgen.io.input.jsonl import JsonlInput
from batchgen.io.input.parquet import ParquetInput
from batchgen.io.input.rows import Row, RowBatch, RowLocations
from batchgen.io.remote import Location

if TYPE_CHECKING:
    from batchgen.spec.job_spec import InputSpec


class Input(Protocol):
    """The rows of a job, which can be read again and again, a piece at a time. Reading stops after `input.limit` rows.

    Every reading raises InputError for a file that is damaged or was changed since the job began.
    """

    @property
    def files(self) -> tuple[Location, ...]:
        """The input files in reading order."""

    @property
    def schema(self) -> pa.Schema:
        """The carried columns and their types. For JSON lines known once all rows have been read."""

    @property
    def locations(self) -> RowLocations:
        """Where the rows come from that `read_rows` or `read_row_batches` has given."""

    def read_rows(self) -> Iterator[Row]:
        """Every row with the values that make its prompt; a row that cannot be read has an `error` instead."""

    def read_row_batches(self) -> Iterator[RowBatch]:
        """The same rows, as many at a time as the reader holds."""

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """The carried columns, typed by `schema`: one record a row, as many and in the same order as `read_rows`.

        A field that could not be read is null.
        """


def open_input(spec: InputSpec) -> Input:
    """Find the files of `input.path` and check what can be checked before reading. Raises InputError."""
    found = find_files(spec.path, spec.format)
    open_format = ParquetInput if found.format == "parquet" else JsonlInput
    return open_format(found.files, prompt_columns(spec), spec.limit)
