"""Parquet input: many files read as one table. Knows files, types and columns; knows no prompts.

The types are checked before anything runs, and the first pass decodes every column, so that a damaged file is found
before a token is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import InputError, RowError
from batchgen.io.input import strict_json
from batchgen.io.input.columns import PromptColumns
from batchgen.io.input.files import DataFile
from batchgen.io.input.parquet_schema import check_prompt_columns, unify
from batchgen.io.input.rows import Row, RowLocations
from batchgen.io.remote import Location, parquet_source

_BATCH_ROWS = 256
_BATCH_BYTES = 8 << 20


class _Piece(NamedTuple):
    file: DataFile
    first_row: int  # of the batch within the file, from 0
    first_index: int  # of the batch within the whole input
    batch: pa.RecordBatch


class _ParquetRows:
    """The rows of a piece. See `rows.RowBatch` for the contract."""

    def __init__(self, piece: _Piece, columns: PromptColumns) -> None:
        self._piece = piece
        self._columns = columns

    def __len__(self) -> int:
        return int(self._piece.batch.num_rows)

    def column(self, name: str) -> pa.Array:
        return self._piece.batch.column(name)

    def rows(self, *, without: str | None = None) -> Iterator[Row]:
        arrays = {name: self.column(name) for name in self._columns.settings if name != without}
        for offset in range(len(self)):
            index, number = self._piece.first_index + offset, self._piece.first_row + offset + 1
            cells = {name: array[offset] for name, array in arrays.items()}
            yield self._row(index, f"{self._piece.file.name} row {number}", cells)

    def _row(self, index: int, location: str, cells: dict[str, pa.Scalar]) -> Row:
        values = {}
        for name, cell in cells.items():
            try:
                values[name] = self._columns.plain(name, _to_python(cell), null_is_absent=True)
            except RowError as error:
                return Row(index, location, error=f"{location}: column {strict_json.quote(name)}: {error}")
        return Row(index, location, values)


class ParquetInput:
    """Rows of Parquet files. See `readers.Input` for the contract."""

    def __init__(self, files: tuple[DataFile, ...], columns: PromptColumns, limit: int | None) -> None:
        schemas = [_read_schema(file) for file in files]
        self.schema: pa.Schema = unify([file.path for file in files], schemas)
        for file, schema in zip(files, schemas, strict=True):
            check_prompt_columns(file.path, schema, columns)
        self._files = files
        self._columns = columns
        self._limit = limit
        self.locations = RowLocations()

    @property
    def files(self) -> tuple[Location, ...]:
        return tuple(file.path for file in self._files)

    def read_rows(self) -> Iterator[Row]:
        return (row for batch in self.read_row_batches() for row in batch.rows())

    def read_row_batches(self) -> Iterator[_ParquetRows]:
        self.locations = RowLocations()
        for piece in self._pieces():
            self.locations.add(piece.first_index, f"{piece.file.name} row", piece.first_row + 1)
            yield _ParquetRows(piece, self._columns)

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        return (piece.batch for piece in self._pieces())

    def _pieces(self) -> Iterator[_Piece]:
        limit = sys.maxsize if self._limit is None else self._limit
        index = 0
        for file in self._files:
            first_index = index
            for batch in _read_file(file) if index < limit else ():
                batch = _conform(batch.slice(0, limit - index), self.schema, file.path)
                yield _Piece(file, index - first_index, index, batch)
                index += batch.num_rows
                if index == limit:
                    break


@contextmanager
def _as_input_error(path: Location) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error


def _read_schema(file: DataFile) -> pa.Schema:
    with _as_input_error(file.path), parquet_source(file.path) as source, pq.ParquetFile(source) as parquet:
        schema: pa.Schema = parquet.schema_arrow
        schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # raises for a damaged name
        return schema


def _read_file(file: DataFile) -> Iterator[pa.RecordBatch]:
    with _as_input_error(file.path):
        file.check_unchanged()
        # With pre-buffering Arrow keeps the whole file in memory until it is closed.
        with parquet_source(file.path) as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
            batch_size = _batch_rows(parquet.metadata)
            # Arrow cannot make one batch of nested dictionaries from two row groups.
            for group in range(parquet.num_row_groups):
                yield from parquet.iter_batches(batch_size, row_groups=[group])
        file.check_unchanged()


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Return the number of rows per batch: fewer where rows are large, which bounds memory."""
    size: int = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    fitting: int = _BATCH_BYTES * metadata.num_rows // max(1, size)
    return max(1, min(_BATCH_ROWS, fitting))


def _conform(batch: pa.RecordBatch, schema: pa.Schema, path: Location) -> pa.RecordBatch:
    """Return the batch with the columns and types of the whole input; a column that its file lacks is null."""
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    absent = pa.nulls(batch.num_rows)
    try:
        arrays = [_cast(present.get(field.name, absent), field.type) for field in schema]
    except pa.ArrowException as error:
        raise InputError(f"{path}: a value does not fit the type that its column has in all files: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):  # Arrow casts null to some types only
        return pa.nulls(len(array), type)
    return array if array.type == type else array.cast(type)


def _to_python(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:  # Arrow does not validate strings when it reads them
        raise RowError(f"not valid UTF-8 at byte {error.start + 1}") from error
    except (ValueError, OverflowError) as error:
        raise RowError(f"Python cannot hold the value: {error}") from error
