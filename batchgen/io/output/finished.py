"""Reopens a finished run: puts its results back into a journal; removes failed rows from one.

Knows part files, chunks and the added columns; the input's columns are read again from the input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import dropwhile, groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import OutputError
from batchgen.io.input.files import Format
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.journal import committed_chunks, merge_chunks, write_chunk
from batchgen.io.output.schema import EXPORT_SCHEMA, added_columns
from batchgen.io.remote import Location, parquet_source
from batchgen.request_output import FinishReason, RequestOutput

_ROWS_PER_CHUNK = 10_000


def import_results(folder: OutputFolder, prefix: str, format: Format, *, without_failed: bool) -> None:
    """Write the rows in `completions/` to the folder's journal, which is empty. Raises OutputError."""
    parts: list[Location] = sorted(folder.completions.glob(f"part-*.{format}"), key=lambda path: path.name)
    chunks = _chunks(_rows(_outputs(parts, prefix), without_failed))
    for number, outputs in enumerate(chunks):
        write_chunk(folder.journal / f"chunk-{number:06d}.parquet", outputs)


def remove_failed(folder: OutputFolder) -> None:
    """Remove the failed rows from the journal, one chunk at a time, each atomically. Raises OutputError."""
    for path in committed_chunks(folder.journal):
        outputs = list(merge_chunks([path], folder.scratch / "merge"))
        kept = [output for row in _rows(outputs, without_failed=True) for output in row]
        if len(kept) < len(outputs):
            write_chunk(path, kept)


def _rows(outputs: Iterable[RequestOutput], without_failed: bool) -> Iterator[list[RequestOutput]]:
    """Yield the samples of each row."""
    for _, samples in groupby(outputs, key=attrgetter("row_index")):
        row = list(samples)
        if not (without_failed and any(output.finish_reason is FinishReason.ERROR for output in row)):
            yield row


def _chunks(rows: Iterable[list[RequestOutput]]) -> Iterator[list[RequestOutput]]:
    chunk: list[RequestOutput] = []
    for row in rows:
        chunk += row
        if len(chunk) >= _ROWS_PER_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _outputs(parts: Iterable[Location], prefix: str) -> Iterator[RequestOutput]:
    """Read the added columns of the parts. A row begins with its sample 0."""
    row_index = -1
    for path in parts:
        read = _read_parquet if path.suffix == ".parquet" else _read_lines
        try:
            for values in read(path, prefix):
                row_index += values["sample_index"] == 0
                reason = FinishReason(values["finish_reason"])
                yield RequestOutput(**{**values, "row_index": row_index, "finish_reason": reason})
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise OutputError(f"{path}: cannot be read: {error}; set output.overwrite: true to start over") from error


def _read_parquet(path: Location, prefix: str) -> Iterator[dict[str, Any]]:
    with parquet_source(path) as source, pq.ParquetFile(source) as part:
        names = [prefix + name for name in _columns(part.schema_arrow.names, prefix)]
        for batch in part.iter_batches(columns=names):
            yield from batch.rename_columns([name.removeprefix(prefix) for name in batch.schema.names]).to_pylist()


def _read_lines(path: Location, prefix: str) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for values in map(json.loads, lines):
            yield {name: values[prefix + name] for name in _columns(values, prefix)}


def _columns(names: Iterable[str], prefix: str) -> list[str]:
    """Return the added columns of a part, of whose columns `names` those of the input, with any names, come first."""
    added = set(dropwhile(lambda name: name != prefix + added_columns()[0], names))
    return added_columns([name for name in EXPORT_SCHEMA.names if prefix + name in added])
