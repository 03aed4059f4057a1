"""The journal: finished rows in sorted chunk files, and their merge into one sorted stream.

    .state/journal/chunk-000000.parquet    columns JOURNAL_SCHEMA, sorted by (row_index, sample_index),
    .state/journal/chunk-000001.parquet    row groups of at most 256 rows, so that many can be merged at once

A chunk is written once, whole, and never changed. Knows result rows; knows nothing of the input.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import OutputError
from batchgen.io.output.folder import atomic_write
from batchgen.io.output.schema import JOURNAL_SCHEMA
from batchgen.io.remote import Location
from batchgen.request_output import FinishReason, RequestOutput

AnyPath = TypeVar("AnyPath", bound=Location)
ResultRow = tuple[Any, ...]  # the values of one row in the order of JOURNAL_SCHEMA
FAN_IN = 64  # files open at once in a merge
_GROUP_ROWS = 256
_ENDING = ["row_index", "finish_reason", "sample_index", "error", "completion_tokens", "origin"]

row_index = itemgetter(JOURNAL_SCHEMA.names.index("row_index"))
sample_index = itemgetter(JOURNAL_SCHEMA.names.index("sample_index"))
_as_row = attrgetter(*JOURNAL_SCHEMA.names)


def write_chunk(path: Location, outputs: Iterable[RequestOutput]) -> None:
    """Commit finished rows, given in any order. Durable on return. Raises OutputError."""
    _write_sorted(path, iter(sorted(map(_as_row, outputs), key=_position)))


def committed_chunks(journal: Location) -> list[Location]:
    """The chunks of a journal, oldest first; files that were not finished are none."""
    return sorted(journal.glob("chunk-*.parquet"), key=lambda path: path.name)


def read_endings(chunks: Iterable[Location]) -> Iterator[RequestOutput]:
    """How every row in the chunks ended: an output without its text. Raises OutputError."""
    for path in chunks:
        try:
            source = path if isinstance(path, Path) else pa.BufferReader(path.read_bytes())
            table = pq.read_table(source, columns=_ENDING)
        except (OSError, pa.ArrowException) as error:
            raise OutputError(f"{path}: cannot be read: {error}; set output.overwrite: true to start over") from error
        for values in zip(*(table[name].to_pylist() for name in _ENDING), strict=True):
            row = dict(zip(_ENDING, values, strict=True))
            yield RequestOutput(**{**row, "finish_reason": FinishReason(row["finish_reason"])})


def merge_chunks(chunks: Sequence[Location], scratch: Path) -> Iterator[ResultRow]:
    """All rows of the chunks, sorted by (row_index, sample_index).

    More than FAN_IN chunks are first merged into larger files in `scratch`, so that files and memory stay bounded;
    chunks in a store are copied there. Raises OSError, also while the rows are taken.
    """
    files = [_local(path, scratch) for path in chunks]
    generation = 0
    while len(files) > FAN_IN:
        scratch.mkdir(exist_ok=True)
        files = [
            _write_sorted(scratch / f"merged-{generation}-{first:06d}.parquet", _merge(files[first : first + FAN_IN]))
            for first in range(0, len(files), FAN_IN)
        ]
        generation += 1
    return _merge(files)


def to_arrays(rows: Sequence[ResultRow], columns: Iterable[str]) -> list[pa.Array]:
    """The named columns of the rows, an array each."""
    fields = [(JOURNAL_SCHEMA.names.index(name), JOURNAL_SCHEMA.field(name).type) for name in columns]
    return [pa.array([row[i] for row in rows], type) for i, type in fields]


def _local(path: Location, scratch: Path) -> Path:
    if isinstance(path, Path):
        return path
    scratch.mkdir(exist_ok=True)
    return path.fetch(scratch / path.name)


def _position(row: ResultRow) -> tuple[int, int]:
    return row_index(row), sample_index(row)


def _merge(chunks: Sequence[Path]) -> Iterator[ResultRow]:
    return heapq.merge(*map(_read, chunks), key=_position)


def _write_sorted(path: AnyPath, rows: Iterator[ResultRow]) -> AnyPath:
    with atomic_write(path) as temporary, pq.ParquetWriter(temporary, JOURNAL_SCHEMA, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            writer.write_batch(
                pa.RecordBatch.from_arrays(to_arrays(group, JOURNAL_SCHEMA.names), schema=JOURNAL_SCHEMA)
            )
    return path


def _read(path: Path) -> Iterator[ResultRow]:
    with pq.ParquetFile(path) as chunk:
        for batch in chunk.iter_batches(batch_size=_GROUP_ROWS):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
