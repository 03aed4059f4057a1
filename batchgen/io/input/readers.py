"""Opens the input. Knows which reader reads which format; reads no rows itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.input.columns import prompt_columns
from batchgen.io.input.files import find_files
from batchgen.io.input.jsonl import JsonlInput
from batchgen.io.input.parquet import ParquetInput
from batchgen.io.input.rows import Row, RowBatch, RowLocations
from batchgen.io.remote import Location

if TYPE_CHECKING:
    from batchgen.spec.job_spec import InputSpec


class Input(Protocol):
    """The rows of a job. They can be read repeatedly, in pieces; reading stops after `input.limit` rows.

    Every pass raises InputError for a file that is damaged or was changed since the job began.
    """

    @property
    def files(self) -> tuple[Location, ...]:
        """The input files in reading order."""

    @property
    def schema(self) -> pa.Schema:
        """The carried columns and their types. For JSON lines they are known once all rows have been read."""

    @property
    def locations(self) -> RowLocations:
        """The file and line or row of every row that `read_rows` or `read_row_batches` has yielded."""

    def missing_columns(self) -> Mapping[str, InputError]:
        """Return an error for each setting whose column no row has; for JSON lines after all rows have been read.

        Parquet files that lack a column are refused when they are opened. Empty if there are no rows.
        """

    def read_rows(self) -> Iterator[Row]:
        """Yield every row with the values that make its prompt; a row that cannot be read has an `error` instead."""

    def read_row_batches(self) -> Iterator[RowBatch]:
        """Yield the same rows, in the batches in which the reader holds them."""

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the carried columns as `schema` types them: one record per row, in the order of `read_rows`.

        A field that could not be read is null.
        """


def open_input(spec: InputSpec) -> Input:
    """Find the files of `input.path` and check what can be checked without reading rows. Raises InputError."""
    found = find_files(spec.path, spec.format)
    open_format = ParquetInput if found.format == "parquet" else JsonlInput
    return open_format(found.files, prompt_columns(spec), spec.limit)
