"""Writes finished rows to the journal as they come, and at the end the part files in input order.

Knows chunks, parts and their sizes; knows nothing of how a row was generated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.io.input.files import Format
from batchgen.io.output.atomic import as_output_error, atomic_write
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.journal import committed_chunks, merge_chunks, read_endings, to_arrays, write_chunk
from batchgen.io.output.json_values import to_lines
from batchgen.io.output.schema import added_columns, output_schema, with_provenance
from batchgen.io.remote import Location
from batchgen.log import event
from batchgen.request_output import RequestOutput

if TYPE_CHECKING:
    from batchgen.io.input.readers import Input

log = logging.getLogger("batchgen")

_GROUP_ROWS = 20_000
_GROUP_BYTES = 128 << 20


class ResultWriter:
    """Takes finished rows in any order and writes them in input order, together with those already in the journal.

    A row is durable once its chunk is committed: after at most `rows_per_chunk` outputs, or at the first `write` or
    `commit_if_due` that comes `seconds_per_chunk` after the last commit.
    """

    def __init__(
        self,
        folder: OutputFolder,
        *,
        rows_per_chunk: int = 10_000,
        seconds_per_chunk: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._rows_per_chunk = rows_per_chunk
        self._seconds_per_chunk = seconds_per_chunk
        self._clock = clock
        self._last_commit = clock()
        self._waiting: list[RequestOutput] = []
        self._chunks = committed_chunks(folder.journal)

    def endings(self) -> Iterator[RequestOutput]:
        """Yield the committed outputs without their texts. Raises OutputError for a damaged journal."""
        return read_endings(self._chunks)

    def write(self, *samples: RequestOutput) -> bool:
        """Add all samples of a finished row, which are committed together. Returns whether this call committed.

        Raises OutputError if the commit fails.
        """
        self._waiting.extend(samples)
        return self.commit_if_due()

    def commit_if_due(self) -> bool:
        """Commit if enough rows are waiting or enough time has passed. Returns whether it did. Raises OutputError."""
        is_late = self._clock() - self._last_commit >= self._seconds_per_chunk
        is_due = is_late or len(self._waiting) >= self._rows_per_chunk
        if is_due:
            self.commit()
        return is_due

    def commit(self) -> None:
        """Make every output so far durable. Raises OutputError."""
        self._folder.lock.check()
        if self._waiting:
            path = self._folder.journal / f"chunk-{len(self._chunks):06d}.parquet"
            write_chunk(path, self._waiting)
            self._chunks.append(path)
            num_rows = len(self._waiting)
            log.info("%d outputs committed", num_rows, extra=event("committed", rows=num_rows))
            self._waiting = []
        self._last_commit = self._clock()

    def finish(
        self,
        input: Input,
        prefix: str,
        format: Format = "parquet",
        optional: Collection[str] = (),
        *,
        provenance: Mapping[str, str] | None = None,
        rows_per_part: int = 1_000_000,
    ) -> None:
        """Write `completions/part-…` from the journal and the input. Every input row must have been written.

        `provenance` goes into the metadata of every Parquet part, with `batchgen.` in front of its keys.
        Raises OutputError if writing fails, InputError if the input has changed.
        """
        self.commit()
        schema = with_provenance(output_schema(input.schema, prefix, format, optional), provenance or {})
        with as_output_error(self._folder.scratch):
            results = merge_chunks(self._chunks, self._folder.scratch / "merge")
        batches = _with_results(input.read_batches(), results, schema, added_columns(optional))
        write_parts(self._folder.completions, batches, schema, format, rows_per_part)


def write_parts(
    folder: Location, batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: Format, rows_per_part: int
) -> None:
    """Write part-00000.parquet, or .jsonl, and so on; each has `rows_per_part` rows, the last one the remainder.

    Writes one empty part if there are no rows. Raises OutputError.
    """
    write_part = {"parquet": _write_parquet, "jsonl": _write_lines}[format]
    parts = groupby(_split_at_parts(batches, rows_per_part), key=itemgetter(0))
    number = -1
    for number, pieces in parts:
        write_part(folder / f"part-{number:05d}.{format}", (batch for _, batch in pieces), schema)
    if number < 0:
        write_part(folder / f"part-00000.{format}", (), schema)


def _with_results(
    batches: Iterable[pa.RecordBatch], results: Iterator[RequestOutput], schema: pa.Schema, added: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the input's batches with the added columns; a row with several samples is repeated."""
    samples_by_row = groupby(results, key=attrgetter("row_index"))
    first_row = 0
    for batch in batches:
        rows = range(first_row, first_row + batch.num_rows)
        found = [sample for row in rows for sample in _samples_of(row, samples_by_row)]
        if len(found) != batch.num_rows:
            batch = batch.take(pa.array([sample.row_index - first_row for sample in found]))
        yield pa.RecordBatch.from_arrays([*batch.columns, *to_arrays(found, added)], schema=schema)
        first_row = rows.stop
    assert next(samples_by_row, None) is None, f"a result beyond the last input row {first_row - 1}"


def _samples_of(row: int, samples_by_row: Iterator[tuple[int, Iterator[RequestOutput]]]) -> list[RequestOutput]:
    index, samples = next(samples_by_row, (None, iter(())))
    assert index == row, f"expected the result of row {row}, got {index = }"
    found = list(samples)
    assert [sample.sample_index for sample in found] == [*range(len(found))], f"samples of {row = } missing or repeated"
    return found


def _split_at_parts(batches: Iterable[pa.RecordBatch], rows_per_part: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (part number, batch); a batch is split where a part is full."""
    num_rows = 0
    for batch in batches:
        while batch.num_rows:
            part, filled = divmod(num_rows, rows_per_part)
            piece = batch.slice(0, rows_per_part - filled)
            yield part, piece
            num_rows += piece.num_rows
            batch = batch.slice(piece.num_rows)


def _write_lines(path: Location, batches: Iterable[pa.RecordBatch], _: pa.Schema) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        for batch in batches:
            file.writelines(to_lines(batch))


def _write_parquet(path: Location, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    with atomic_write(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for group in _row_groups(batches):
            writer.write_table(group, row_group_size=group.num_rows)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about _GROUP_ROWS rows, or of fewer where rows are large."""
    group: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        group.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, num_rows, num_bytes = [], 0, 0
    if group:
        yield pa.Table.from_batches(group)
