"""Status and export of an unfinished run, from another process. Knows the folder; knows nothing of the engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from batchgen.errors import OutputError
from batchgen.io.input.files import Format
from batchgen.io.input.readers import Input
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.journal import committed_chunks, merge_chunks, read_endings, to_arrays
from batchgen.io.output.schema import EXPORT_SCHEMA, added_columns, output_schema
from batchgen.io.output.writers import write_parts
from batchgen.request_output import FinishReason, RequestOutput

Batches = Iterator[pa.RecordBatch]
BatchesOf = Callable[[Iterator[RequestOutput]], Batches]
_BATCH_ROWS = 1_000
_ROWS_PER_PART = 1_000_000


def describe_unfinished(folder: OutputFolder) -> str:
    """Describe in two lines who runs it and what is committed. Raises OutputError if there is no unfinished run."""
    _require_unfinished(folder)
    holder = folder.lock.live_holder()
    failed: dict[int, bool] = {}  # row -> whether one of its samples failed
    for output in read_endings(committed_chunks(folder.journal)):
        failed[output.row_index] = failed.get(output.row_index, False) or output.finish_reason is FinishReason.ERROR
    num_rows, num_failed = len(failed), sum(failed.values())
    state = f"running: {holder}" if holder else "not running; run the same command again to continue"
    return f"unfinished, {state}\ncommitted={num_rows} ok={num_rows - num_failed} failed={num_failed}"


def export_committed(folder: OutputFolder, to: Path, format: Format = "parquet") -> int:
    """Write the committed rows of an unfinished run to `to/part-00000.parquet` and so on, by row_index.

    The columns are row_index (0 is the first row of the input) and those that batchgen adds. Returns the number of
    outputs. Raises OutputError if there is no unfinished run, or if `to` is not empty or cannot be written.
    """
    return _export(folder, to, _to_batches, EXPORT_SCHEMA, format)


def export_with_input(folder: OutputFolder, to: Path, source: Input, prefix: str, format: Format) -> int:
    """Like `export_committed`, but with the columns of the run's input, already read once, instead of row_index.

    An optional column whose name the input has is left out: the run writes none, or it would have been refused.
    """
    names = [name for name in EXPORT_SCHEMA.names if prefix + name not in source.schema.names]
    schema, added = output_schema(source.schema, prefix, format, names), added_columns(names)
    return _export(folder, to, lambda rows: _join_input(source.read_batches(), rows, schema, added), schema, format)


def _export(folder: OutputFolder, to: Path, batches_of: BatchesOf, schema: pa.Schema, format: Format) -> int:
    _require_unfinished(folder)
    scratch = to / ".merge"
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise OutputError(f"{to}: the folder is not empty; choose another")
        chunks = committed_chunks(folder.journal)
        write_parts(to, batches_of(merge_chunks(chunks, scratch)), schema, format, _ROWS_PER_PART)
        return sum(1 for _ in read_endings(chunks))
    except FileNotFoundError as error:
        raise OutputError(f"{folder.path}: the run has ended in the meantime ({error.filename} is gone)") from error
    except OSError as error:
        raise OutputError(f"{to}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _join_input(
    batches: Iterable[pa.RecordBatch], results: Iterator[RequestOutput], schema: pa.Schema, added: Sequence[str]
) -> Batches:
    """Yield the input rows that have results, followed by the added columns."""
    result, first_row = next(results, None), 0
    for batch in batches:
        stop, found = first_row + batch.num_rows, []
        while result is not None and result.row_index < stop:
            found.append(result)
            result = next(results, None)
        chosen = batch.take(pa.array([each.row_index - first_row for each in found], pa.int64()))
        yield pa.RecordBatch.from_arrays([*chosen.columns, *to_arrays(found, added)], schema=schema)
        first_row = stop


def _to_batches(rows: Iterator[RequestOutput]) -> Batches:
    names = EXPORT_SCHEMA.names
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_arrays(to_arrays(batch, names), schema=EXPORT_SCHEMA)


def _require_unfinished(folder: OutputFolder) -> None:
    if folder.success.exists():
        raise OutputError(f"{folder.path}: the run is finished; its rows are in {folder.completions}")
    if not folder.run_json.exists():
        raise OutputError(f"{folder.path}: holds no run that has generated a row")
