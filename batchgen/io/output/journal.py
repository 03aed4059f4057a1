"""The journal: finished rows in sorted chunk files, and their merge into one sorted stream.

    .state/journal/chunk-000000.parquet    columns JOURNAL_SCHEMA, sorted by (row_index, sample_index),
    .state/journal/chunk-000001.parquet    row groups of at most 256 rows, so that a merge holds little of each

A chunk is written once, atomically, and never changed. Knows outputs; knows nothing of the input.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import OutputError
from batchgen.io.output.atomic import atomic_write
from batchgen.io.output.schema import JOURNAL_SCHEMA
from batchgen.io.remote import AnyLocation, Location
from batchgen.request_output import FinishReason, RequestOutput

FAN_IN = 64  # files that one merge opens
_GROUP_ROWS = 256
_ENDING_COLUMNS = ["row_index", "finish_reason", "sample_index", "error", "completion_tokens", "origin"]
_FINISH_REASONS = {str(reason): reason for reason in FinishReason}  # several times faster than FinishReason(text)
_sort_key = attrgetter("row_index", "sample_index")


def write_chunk(path: Location, outputs: Iterable[RequestOutput]) -> None:
    """Write outputs, given in any order, as a chunk that is durable on return. Raises OutputError."""
    _write_sorted(path, iter(sorted(outputs, key=_sort_key)))


def committed_chunks(journal: Location) -> list[Location]:
    """Return the chunks of a journal, oldest first, without incomplete files."""
    return sorted(journal.glob("chunk-*.parquet"), key=lambda path: path.name)


def read_endings(chunks: Iterable[Location]) -> Iterator[RequestOutput]:
    """Yield the outputs without their texts, sorted within each chunk. Raises OutputError for a damaged chunk."""
    for path in chunks:
        try:
            source = path if isinstance(path, Path) else pa.BufferReader(path.read_bytes())
            table = pq.read_table(source, columns=_ENDING_COLUMNS)
        except (OSError, pa.ArrowException) as error:
            advice = "remove it and newer chunks to run their rows again, or set output.overwrite: true to start over"
            raise OutputError(f"{path}: cannot be read: {error}; {advice}") from error
        for batch in table.to_batches():
            yield from _outputs(batch)


def merge_chunks(chunks: Sequence[Location], scratch: Path) -> Iterator[RequestOutput]:
    """Return the outputs in the chunks, sorted by (row_index, sample_index).

    More than FAN_IN chunks are first merged into larger files in `scratch`, so that open files and memory stay bounded;
    chunks in a store are copied there. Raises OSError, also during iteration.
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


def to_arrays(rows: Sequence[RequestOutput], columns: Iterable[str]) -> list[pa.Array]:
    """Return the named columns of the rows, one array per column."""
    return [pa.array(list(map(attrgetter(name), rows)), JOURNAL_SCHEMA.field(name).type) for name in columns]


def _local(path: Location, scratch: Path) -> Path:
    if isinstance(path, Path):
        return path
    scratch.mkdir(exist_ok=True)
    return path.fetch(scratch / path.name)


def _merge(chunks: Sequence[Path]) -> Iterator[RequestOutput]:
    return heapq.merge(*map(_read, chunks), key=_sort_key)


def _write_sorted(path: AnyLocation, rows: Iterator[RequestOutput]) -> AnyLocation:
    with atomic_write(path) as temporary, pq.ParquetWriter(temporary, JOURNAL_SCHEMA, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            writer.write_batch(
                pa.RecordBatch.from_arrays(to_arrays(group, JOURNAL_SCHEMA.names), schema=JOURNAL_SCHEMA)
            )
    return path


def _read(path: Path) -> Iterator[RequestOutput]:
    with pq.ParquetFile(path) as chunk:
        for batch in chunk.iter_batches(batch_size=_GROUP_ROWS):
            yield from _outputs(batch)


def _outputs(batch: pa.RecordBatch) -> Iterator[RequestOutput]:
    """Return the rows of a batch, whose columns may be in any order; a field without a column is None."""
    columns = {name: column.to_pylist() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    columns["finish_reason"] = [_FINISH_REASONS[text] for text in columns["finish_reason"]]
    absent = [None] * batch.num_rows
    return map(RequestOutput._make, zip(*(columns.get(name, absent) for name in RequestOutput._fields), strict=True))
