"""JSON lines: one object per line, split at b"\\n" only. Knows lines and values; types are inferred over all rows.

A line that cannot be used becomes a row with an error, and reading continues. Only a file that is not JSON lines at
all is refused.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.io.input import strict_json
from batchgen.io.input.columns import ABSENT, PromptColumns, find_value, missing_column
from batchgen.io.input.files import DataFile
from batchgen.io.input.folders import partition_error
from batchgen.io.input.json_types import ColumnTypes, to_batch
from batchgen.io.input.rows import Row, RowLocations
from batchgen.io.input.streams import inner_name, open_bytes
from batchgen.io.remote import Location

_BATCH_ROWS = 1024
_BATCH_BYTES = 8 << 20  # of input lines
_MAX_LINE_BYTES = 256 << 20  # with its end; a small compressed file can hold a longer line, which is no prompt
_CHUNK_BYTES = 1 << 20
_MAX_COLUMNS = 10_000  # beyond that keys are data, and readers of the output cannot handle so many columns
_SPACE = b" \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # valid UTF-8 can hold a surrogate only as an escape


class _Record(NamedTuple):
    kind: str  # "data.jsonl line"
    number: int  # of the line, from 1
    values: dict[str, Any]  # the fields that could be read; some may be missing if there is a problem
    problem: str | None
    size: int  # bytes of the line

    @property
    def location(self) -> str:
        return f"{self.kind} {self.number}"


class _JsonlRows:
    """Rows that were read together. See `rows.RowBatch` for the contract."""

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
        self._present: set[str] = set()  # the named columns that some row has
        self.locations = RowLocations()

    @property
    def files(self) -> tuple[Location, ...]:
        return tuple(file.path for file in self._files)

    @property
    def schema(self) -> pa.Schema:
        assert self._schema is not None, "the schema is known only after all rows have been read"
        return self._schema

    def missing_columns(self) -> dict[str, InputError]:
        fields = list(self.schema)
        if self._files[0].partition.keys() >= set(self.schema.names):
            return {}  # no line could be read
        return {
            setting: missing_column(self.files[0], setting, column, fields)
            for column, setting in self._columns.settings.items()
            if column not in self._present
        }

    def read_rows(self) -> Iterator[Row]:
        return (row for batch in self.read_row_batches() for row in batch.rows())

    def read_row_batches(self) -> Iterator[_JsonlRows]:
        self.locations, self._present = RowLocations(), set()
        types = ColumnTypes(last=self._files[0].partition)
        index = 0
        for records in self._record_batches():
            for record in records:
                types.observe(record.values)
                if len(types) > _MAX_COLUMNS:
                    raise InputError(
                        f"{record.location}: over {_MAX_COLUMNS} different keys so far; put them under one key"
                    )
            yield _JsonlRows([self._row(index + n, record) for n, record in enumerate(records)])
            index += len(records)
        self._schema = types.schema()

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        return (to_batch([record.values for record in records], self.schema) for records in self._record_batches())

    def _row(self, index: int, record: _Record) -> Row:
        self.locations.add(index, record.kind, record.number)
        found = {name: find_value(record.values, name) for name in self._columns.settings}
        found = {name: value for name, value in found.items() if value is not ABSENT}
        self._present.update(found)
        if record.problem is not None:
            return Row(index, record.location, error=f"{record.location}: {record.problem}")
        values = {}
        for name, value in found.items():
            try:
                values[name] = self._columns.plain(name, value)
            except RowError as error:
                return Row(index, record.location, error=f"{record.location}: key {strict_json.quote(name)}: {error}")
        return Row(index, record.location, values)

    def _record_batches(self) -> Iterator[list[_Record]]:
        """Yield all records, in lists that are held in memory one at a time."""
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
    file.check_unchanged()
    kind = f"{file.name} line"
    with open_bytes(file.path) as stream:
        for number, line in enumerate(_lines(stream), start=1):
            if line is None:
                problem = f"the line is longer than {_MAX_LINE_BYTES:,} bytes"
                yield _Record(kind, number, {**file.partition}, problem, _MAX_LINE_BYTES)
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip(_SPACE):
                yield _read_line(file, kind, number, line)
    file.check_unchanged()


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines with their ends; None for a line that is too long."""
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        yield line if len(line) <= _MAX_LINE_BYTES else None
        while len(line) > _MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(_MAX_LINE_BYTES + 1)


def _read_line(file: DataFile, kind: str, number: int, line: bytes) -> _Record:
    try:
        values, problem = _parse_line(line)
    except RowError as error:
        values, problem = {}, str(error)
    for name, value in file.partition.items():
        if not _is_same(values.setdefault(name, value), value):
            raise partition_error(f"{file.path} line {number}", name, "differs from the key of that name")
    return _Record(kind, number, values, problem, len(line))


def _is_same(value: Any, text: str | None) -> bool:
    """Return whether a JSON value is what a folder name says as text."""
    if text is None or not isinstance(value, int | float):
        return bool(value == text)
    if isinstance(value, bool):
        return text == strict_json.to_text(value)
    try:
        return value == type(value)(text)
    except ValueError:
        return False


def _parse_line(line: bytes) -> tuple[dict[str, Any], str | None]:
    """Return the usable fields of a line, and the problem with the others. Raises RowError if no field is usable."""
    try:
        text = line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not valid UTF-8 at byte {error.start + 1} of the line") from error
    values = _parse_json(text)
    if not isinstance(values, dict):
        raise RowError("the line is JSON, but not an object")
    if not _SURROGATE.search(text):
        return values, None
    bad = [name for name, value in values.items() if strict_json.has_lone_surrogate([name, value])]
    good = {name: value for name, value in values.items() if name not in bad}
    return good, f"half a surrogate pair in {', '.join(map(strict_json.quote, bad))}" if bad else None


def _parse_json(text: str) -> Any:
    try:
        return strict_json.parse(text)
    except RowError as error:
        at = text.find("\0")
        if at < 0:
            raise
        raise RowError(
            f"the line has NUL bytes from column {at + 1} on: the file was not written or copied to its end, "
            "or it is UTF-16 text"
        ) from error


def _refuse_other_json(path: Location) -> None:
    """Raise InputError for a JSON array, and for a `.json` file whose first line is not a complete object."""
    with open_bytes(path) as stream:
        lines = iter(partial(stream.readline, _MAX_LINE_BYTES), b"")
        first = next((line for line in lines if line.strip(_SPACE)), b"").removeprefix(codecs.BOM_UTF8).strip(_SPACE)
        rest_ends = _last_byte(stream) if first.startswith(b"[") else b""
    is_one_line = not rest_ends
    if first.startswith(b"[") and (rest_ends or first[-1:]) == b"]" and (is_one_line or not _is_json(first)):
        raise InputError(f"{path}: the file is a JSON array, not lines; write one object per line (jq -c '.[]')")
    if inner_name(path).suffix.lower() == ".json" and first and not (first.startswith(b"{") and _is_json(first)):
        raise InputError(f"{path}: the file is not JSON lines: its first line is not a complete object")


def _last_byte(stream: BinaryIO) -> bytes:
    """Return the last non-space byte of the rest, or b"". Reads it all: a compressed file cannot seek to its end."""
    last = b""
    for chunk in iter(partial(stream.read, _CHUNK_BYTES), b""):
        last = chunk.rstrip(_SPACE)[-1:] or last
    return last


def _is_json(line: bytes) -> bool:
    try:
        strict_json.parse(line.decode("utf-8", "replace"))
    except RowError:
        return False
    return True
