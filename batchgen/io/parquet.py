"""Parquet input: many files read as one table. Knows files, types and columns.

The types are checked before anything runs, and the first pass decodes every column, so that a damaged file is found
before a token is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import InputError, RowError
from batchgen.io.columns import PromptColumns
from batchgen.io.files import DataFile
from batchgen.io.parquet_schema import check_prompt_columns, unify
from batchgen.io.rows import Row

_BATCH_ROWS = 256
_BATCH_BYTES = 8 << 20


class _Piece(NamedTuple):
    file: DataFile
    first_row: int  # of the batch within the file, from 0
    batch: pa.RecordBatch


class ParquetInput:
    """Rows of Parquet files. See `readers.Input` for the contract."""

    def __init__(self, files: tuple[DataFile, ...], columns: PromptColumns, limit: int | None) -> None:
        schemas = [_read_schema(file) for file in files]
        for file, schema in zip(files, schemas, strict=True):
            check_prompt_columns(file.path, schema, columns)
        self.schema: pa.Schema = unify([file.path for file in files], schemas)
        self._files = files
        self._columns = columns
        self._limit = limit

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self._files)

    def read_rows(self) -> Iterator[Row]:
        used = [name for name in self.schema.names if self._columns.is_used(name)]
        index = 0
        for piece in self._pieces():
            arrays = {name: piece.batch.column(name) for name in used}
            for offset in range(piece.batch.num_rows):
                place = f"{piece.file.name} row {piece.first_row + offset + 1}"
                yield self._row(index, place, {name: array[offset] for name, array in arrays.items()})
                index += 1

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        return (piece.batch for piece in self._pieces())

    def _row(self, index: int, place: str, cells: dict[str, pa.Scalar]) -> Row:
        try:
            values = {name: self._columns.plain(name, _to_python(name, cell)) for name, cell in cells.items()}
        except RowError as error:
            return Row(index, place, error=f"{place}: {error}")
        return Row(index, place, values)

    def _pieces(self) -> Iterator[_Piece]:
        left = sys.maxsize if self._limit is None else self._limit
        for file in self._files:
            first_row = 0
            for batch in _read_file(file) if left else ():
                piece = _Piece(file, first_row, _conform(batch.slice(0, left), self.schema, file.path))
                yield piece
                first_row += piece.batch.num_rows
                left -= piece.batch.num_rows
                if not left:
                    break


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error


def _read_schema(file: DataFile) -> pa.Schema:
    with _naming(file.path), pq.ParquetFile(file.path) as parquet:
        return parquet.schema_arrow


def _read_file(file: DataFile) -> Iterator[pa.RecordBatch]:
    with _naming(file.path):
        file.check_unchanged()
        with pq.ParquetFile(file.path) as parquet:
            yield from parquet.iter_batches(batch_size=_batch_rows(parquet.metadata))


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Rows of one batch: fewer where rows are large, so that memory does not grow with them."""
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(1, size)))


def _conform(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """The batch with the columns and types of the whole input; a column that its file lacks is null."""
    arrays = []
    for field in schema:
        if field.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(field.name)
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowException as error:
            raise InputError(
                f"{path}: column {field.name!r} ({array.type}) does not fit {field.type}, its type in all files: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_python(name: str, cell: pa.Scalar) -> Any:
    """Plain value of a cell. Structs in a list lose their null fields at depth 2 and more: in Arrow all rows share one
    struct, so that a null field there means an absent key. Raises RowError for a value that Python cannot hold."""
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise RowError(f"column {name!r}: not valid UTF-8 at byte {error.start + 1}") from error
    except (ValueError, OverflowError) as error:
        raise RowError(f"column {name!r}: unreadable value: {error}") from error
