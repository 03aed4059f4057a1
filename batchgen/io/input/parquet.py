"""Parquet input: many files read as one table. Knows files, types and columns; knows no prompts.

The types are checked before anything runs, and the first pass decodes every column, so that a damaged file is found
before a token is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchgen.errors import InputError, RowError
from batchgen.io.input import strict_json
from batchgen.io.input.columns import PromptColumns, find_path
from batchgen.io.input.files import ENCRYPTED, DataFile, footer_len
from batchgen.io.input.folders import partition_error
from batchgen.io.input.parquet_schema import check_prompt_columns, unify, with_partition
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
        batch = self._piece.batch
        path = find_path(list(batch.schema), name)
        assert path is not None, "the columns were checked when the input was opened"
        column = batch.column(path[0])
        return pc.struct_field(column, list(path[1:])) if path[1:] else column

    def rows(self, *, without: str | None = None) -> Iterator[Row]:
        named = {name: self._values(name) for name in self._columns.settings if name != without}
        for offset in range(len(self)):
            index, number = self._piece.first_index + offset, self._piece.first_row + offset + 1
            values = {name: column[offset] for name, column in named.items()}
            yield _row(index, f"{self._piece.file.name} row {number}", values)

    def _values(self, name: str) -> list[Any]:
        """Return the values of a column, with a RowError in place of a value that cannot be used."""
        array = self.column(name)
        try:
            return self._columns.values(name, array)
        except RowError:
            return [self._value_or_error(name, array.slice(i, 1)) for i in range(len(array))]

    def _value_or_error(self, name: str, array: pa.Array) -> Any:
        try:
            return self._columns.values(name, array)[0]
        except RowError as error:
            return error


def _row(index: int, location: str, values: dict[str, Any]) -> Row:
    for name, value in values.items():
        if isinstance(value, RowError):
            return Row(index, location, error=f"{location}: column {strict_json.quote(name)}: {value}")
    return Row(index, location, values)


class ParquetInput:
    """Rows of Parquet files. See `readers.Input` for the contract."""

    def __init__(self, files: tuple[DataFile, ...], columns: PromptColumns, limit: int | None) -> None:
        schemas = [_read_schema(file) for file in files]
        unified = unify([file.path for file in files], schemas)
        self.schema: pa.Schema = with_partition(unified, files[0].partition)
        for file, schema in zip(files, schemas, strict=True):
            check_prompt_columns(file.path, with_partition(schema, file.partition), self.schema, columns)
        self._files = files
        self._columns = columns
        self._limit = limit
        self.locations = RowLocations()

    @property
    def files(self) -> tuple[Location, ...]:
        return tuple(file.path for file in self._files)

    def missing_columns(self) -> dict[str, InputError]:
        return {}

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
                first_row = index - first_index
                batch = _conform(batch.slice(0, limit - index), self.schema, file, first_row)
                yield _Piece(file, first_row, index, batch)
                index += batch.num_rows
                if index == limit:
                    break


@contextmanager
def _as_input_error(path: Location) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if "decrypt" in str(error):
            raise InputError(f"{path}: {ENCRYPTED}") from error
        raise InputError(f"{path}: cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error


@contextmanager
def _opened(path: Location) -> Iterator[pq.ParquetFile]:
    # With pre-buffering Arrow keeps the whole file in memory until it is closed.
    with _as_input_error(path), parquet_source(path) as source, _parquet_file(path, source) as parquet:
        yield parquet


def _parquet_file(path: Location, source: Path | BinaryIO) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, pre_buffer=False)
    except OSError as error:
        if "size limit" not in str(error):  # of Arrow, on what a footer holds: 1,000,000 items, 100 MB of text
            raise
    limit = footer_len(path)
    return pq.ParquetFile(source, pre_buffer=False, thrift_string_size_limit=limit, thrift_container_size_limit=limit)


def _read_schema(file: DataFile) -> pa.Schema:
    with _opened(file.path) as parquet:
        schema: pa.Schema = parquet.schema_arrow
        schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # raises for a damaged name
        return schema


def _read_file(file: DataFile) -> Iterator[pa.RecordBatch]:
    file.check_unchanged()
    with _opened(file.path) as parquet:
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


def _conform(batch: pa.RecordBatch, schema: pa.Schema, file: DataFile, first_row: int) -> pa.RecordBatch:
    """Return the batch with the columns and types of the whole input; a column that its file lacks is null.

    The columns that the file's folders give are filled in, or compared if the file has them itself.
    """
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    absent = pa.nulls(batch.num_rows)
    try:
        columns = {field.name: _cast(present.get(field.name, absent), field.type) for field in schema}
    except pa.ArrowException as error:
        raise InputError(
            f"{file.path}: a value does not fit the type that its column has in all files: {error}"
        ) from error
    for name, value in file.partition.items():
        expected = _repeated(value, schema.field(name).type, batch.num_rows)
        if name in present:
            _check_partition(columns[name], expected, f"{file.path} row", first_row, name)
        elif expected is None:
            raise partition_error(str(file.path), name, f"gives no {schema.field(name).type}, as other files have it")
        else:
            columns[name] = expected
    return pa.RecordBatch.from_arrays([*columns.values()], schema=schema)


def _repeated(value: str | None, type: pa.DataType, num_rows: int) -> pa.Array | None:
    """Return a column that has one value in all rows; None if the type has no such value."""
    if value is None:
        return pa.nulls(num_rows, type)
    try:
        return _cast(pa.repeat(pa.scalar(value), num_rows), type)
    except pa.ArrowException:
        return None


def _check_partition(column: pa.Array, expected: pa.Array | None, location: str, first_row: int, name: str) -> None:
    if isinstance(column, pa.DictionaryArray):
        column, expected = column.dictionary_decode(), None if expected is None else expected.dictionary_decode()
    for i in range(len(column)):
        if expected is None or not column[i].equals(expected[i]):
            raise partition_error(f"{location} {first_row + i + 1}", name, "differs from the column of that name")


def _cast(array: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):  # Arrow casts null to some types only
        return pa.nulls(len(array), type)
    return array if array.type == type else array.cast(type)
