"""JSON lines: one object a line, split at b"\\n" only. Knows lines and values; column types are found over all rows.

A line that cannot be used becomes a row with an error and the reading goes on. Only a file that is no JSON lines file
at all is refused.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.io import strict_json
from batchgen.io.columns import PromptColumns
from batchgen.io.files import DataFile
from batchgen.io.json_types import ColumnTypes, to_batch
from batchgen.io.rows import Row

_BATCH_ROWS = 1024
_BATCH_BYTES = 8 << 20  # of input lines
_TAIL_BYTES = 64 << 10
_MAX_COLUMNS = 10_000  # beyond that keys are data, and no reader of the output could bear them as columns
_SPACE = b" \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # valid UTF-8 can hold a surrogate only as an escape


class _Record(NamedTuple):
    place: str
    values: dict[str, Any]  # what could be read; may lack fields if there is an error
    error: str | None
    size: int  # bytes of the line


class _JsonlRows:
    """Rows that were read together; see `rows.RowBatch`."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, *, without: str | None = None) -> Iterator[Row]:
        return iter(self._rows)

    def column(self, name: str) -> None:
        return None


class JsonlInput:
    """Rows of JSON lines files. See `readers.Input` for the contract."""

    def __init__(self, files: tuple[DataFile, ...], columns: PromptColumns, limit: int | None) -> None:
        for file in files:
            _refuse_other_json(file.path)
        self._files = files
        self._columns = columns
        self._limit = limit
        self._schema: pa.Schema | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self._files)

    @property
    def schema(self) -> pa.Schema:
        assert self._schema is not None, "the types are known only after all rows were read"
        return self._schema

    def read_rows(self) -> Iterator[Row]:
        return (row for batch in self.read_row_batches() for row in batch.rows())

    def read_row_batches(self) -> Iterator[_JsonlRows]:
        types = ColumnTypes()
        index = 0
        for records in self._held_records():
            for record in records:
                types.observe(record.values)
                if len(types) > _MAX_COLUMNS:
                    raise InputError(
                        f"{record.place}: over {_MAX_COLUMNS} different keys so far; put them under one key"
                    )
            yield _JsonlRows([self._row(index + n, record) for n, record in enumerate(records)])
            index += len(records)
        self._schema = types.schema()

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        return (to_batch([record.values for record in records], self.schema) for records in self._held_records())

    def _row(self, index: int, record: _Record) -> Row:
        if record.error is not None:
            return Row(index, record.place, error=record.error)
        values = {}
        for name in self._columns.settings:
            if name not in record.values:
                continue
            try:
                values[name] = self._columns.plain(name, record.values[name])
            except RowError as error:
                return Row(index, record.place, error=f"{record.place}: key {strict_json.quote(name)}: {error}")
        return Row(index, record.place, values)

    def _held_records(self) -> Iterator[list[_Record]]:
        """All records, as many at a time as are held in memory."""
        records: list[_Record] = []
        size = 0
        for record in islice((record for file in self._files for record in _read_file(file)), self._limit):
            records.append(record)
            size += record.size
            if len(records) == _BATCH_ROWS or size >= _BATCH_BYTES:
                yield records
                records, size = [], 0
        if records:
            yield records


def _read_file(file: DataFile) -> Iterator[_Record]:
    try:
        file.check_unchanged()
        with file.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip(_SPACE):
                    yield _read_line(f"{file.name} line {number}", line)
    except OSError as error:
        raise InputError(f"{file.path}: cannot be read: {error.strerror}") from error


def _read_line(place: str, line: bytes) -> _Record:
    try:
        values, problem = _parse_line(line)
    except RowError as error:
        values, problem = {}, str(error)
    return _Record(place, values, None if problem is None else f"{place}: {problem}", len(line))


def _parse_line(line: bytes) -> tuple[dict[str, Any], str | None]:
    """Fields of a line and what is wrong with others. Raises RowError if no field can be used."""
    try:
        text = line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not valid UTF-8 at byte {error.start + 1} of the line") from error
    values = strict_json.parse(text)
    if not isinstance(values, dict):
        raise RowError("the line is JSON, but not an object")
    if not _SURROGATE.search(text):
        return values, None
    bad = [name for name, value in values.items() if strict_json.has_lone_surrogate([name, value])]
    good = {name: value for name, value in values.items() if name not in bad}
    return good, f"half a surrogate pair in {', '.join(map(strict_json.quote, bad))}" if bad else None


def _refuse_other_json(path: Path) -> None:
    """Raise InputError for a JSON array, and for a `.json` file whose first line is not a whole object."""
    try:
        with path.open("rb") as file:
            lines = (line for line in file if line.strip(_SPACE))
            first = next(lines, b"").removeprefix(codecs.BOM_UTF8).lstrip(_SPACE)
            is_one_line = next(lines, None) is None
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            last = file.read().rstrip(_SPACE)[-1:]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if first.startswith(b"[") and last == b"]" and (is_one_line or not _is_json(first)):
        raise InputError(f"{path}: the file is a JSON array, not lines; write one object a line (jq -c '.[]' does it)")
    if path.suffix.lower() == ".json" and first and not (first.startswith(b"{") and _is_json(first)):
        raise InputError(f"{path}: the file is not JSON lines: its first line is not a whole object")


def _is_json(line: bytes) -> bool:
    try:
        strict_json.parse(line.decode("utf-8", "replace"))
    except RowError:
        return False
    return True
