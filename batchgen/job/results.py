"""Results: passes every output to the writer, counts rows, and stops the run at too many failed ones.

WorkLog saves the steps and seconds of all sessions in `.state/work.json`, so that they survive a kill.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from batchgen.errors import InputError, OutputError
from batchgen.io.input.readers import Input
from batchgen.io.output.atomic import atomic_write
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.writers import ResultWriter
from batchgen.log import event
from batchgen.plan.token_store import Positions
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.spec.job_spec import OutputSpec
from batchgen.stats.counters import RunStats
from batchgen.stats.report import RowCounts
from batchgen.stats.resumed import CommittedRows, add_work, work_of
from batchgen.stats.stopwatch import Stopwatch

log = logging.getLogger("batchgen")

_MAX_LOGGED = 10  # failed rows in the log; the output has all


class Results:
    """Takes the outputs of a run in any order. Rows committed by an earlier session are counted from the start.

    `max_errors`: failed rows that the job tolerates; None: any number. Raises InputError as soon as there are more.
    """

    def __init__(self, writer: ResultWriter, max_errors: int | None, work: WorkLog) -> None:
        self.counts = RowCounts()
        self.earlier = CommittedRows()
        self._work = work
        self._writer = writer
        self._unfinished: dict[int, list[RequestOutput]] = {}  # row -> its samples so far
        self._max_errors = max_errors
        self._committed = self._resume()  # [rows] int64, ascending: of earlier sessions

    def remaining(self, row_indices: array[int]) -> Positions:
        """Return the indices into `row_indices` of the rows that no earlier session committed."""
        return np.flatnonzero(~np.isin(np.frombuffer(row_indices, np.int64), self._committed, assume_unique=True))

    def add(self, output: RequestOutput, num_samples: int) -> None:
        """Take one of the `num_samples` of a row; the row is written and counted when all its samples have ended.

        Raises InputError when more rows have failed than the job allows.
        """
        samples = self._unfinished.setdefault(output.row_index, [])
        samples.append(output)
        if len(samples) == num_samples:
            self._write(self._unfinished.pop(output.row_index))

    def _write(self, samples: Sequence[RequestOutput]) -> None:
        if self._writer.write(*samples):
            self._work.save()
        self._count(samples)

    def _resume(self) -> npt.NDArray[np.int64]:
        committed = array("q")
        for row_index, samples in groupby(self._writer.endings(), key=attrgetter("row_index")):
            row = list(samples)
            self._count(row)
            for sample in row:
                self.earlier.observe(sample)
            committed.append(row_index)
        self.counts.num_resumed = len(committed)
        if committed:
            log.info("resumes; %d rows are done already", len(committed))
        return np.sort(np.frombuffer(committed, np.int64)) if committed else np.empty(0, np.int64)

    def _is_committed(self, row_index: int) -> bool:
        position = int(np.searchsorted(self._committed, row_index))
        return position < len(self._committed) and int(self._committed[position]) == row_index

    def _count(self, samples: Sequence[RequestOutput]) -> None:
        """Count a row; it has failed if any of its samples has."""
        output = next((sample for sample in samples if sample.finish_reason is FinishReason.ERROR), samples[0])
        self.counts.observe(output)
        if output.finish_reason is FinishReason.ERROR and self.counts.num_failed <= _MAX_LOGGED:
            log.info("%s", output.error, extra=event("row_failed", row=output.row_index, error=output.error))
        if self._max_errors is not None and self.counts.num_failed > self._max_errors:
            raise InputError(
                f"stopped at failed row {self.counts.num_failed} (max_errors {self._max_errors}): {output.error}; "
                "fix the row, or set on_error: continue and a larger max_errors"
            )

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        """Write the error of a row that never ran as one output; a row that is committed already is skipped."""
        if self._is_committed(row_index):
            return
        num_tokens = None if prompt_tokens is None else 0
        output = RequestOutput(
            row_index,
            FinishReason.ERROR,
            error=error,
            prompt_tokens=prompt_tokens,
            completion_tokens=num_tokens,
            cached_tokens=num_tokens,
        )
        self._write([output])

    def resume_counters(self, stats: RunStats) -> None:
        """Add the figures of earlier sessions to this session's counters, which every commit saves from now on."""
        self.earlier.add_to(stats)
        self._work.resume(stats)

    @contextmanager
    def committed_at_end(self) -> Iterator[None]:
        """Commit every output so far when the block ends, also when it ends with an exception."""
        try:
            yield
        finally:
            self._writer.commit()
            self._work.save()

    def commit_if_due(self) -> None:
        """Commit if the time since the last commit asks for it; to be called also while no row finishes."""
        if self._writer.commit_if_due():
            self._work.save()

    def finish(
        self, source: Input, output: OutputSpec, provenance: Mapping[str, str], optional: Collection[str] = ()
    ) -> None:
        """Write the part files in input order, including the `optional` columns that this job asks for.

        `provenance` goes into the metadata of the part files.
        """
        self._writer.finish(source, output.prefix, output.format, optional, provenance=provenance)


class WorkLog:
    """Adds up the work of all sessions of a run. Raises OutputError if the file of earlier ones cannot be read."""

    def __init__(self, folder: OutputFolder, watch: Stopwatch) -> None:
        self._path = folder.work_json
        self._watch = watch
        self._stats: RunStats | None = None
        self._earlier: dict[str, float] = {}
        if not self._path.exists():
            return
        try:
            noted = json.loads(self._path.read_text(encoding="utf-8"))
            self._earlier = noted["steps"]
            watch.resume_from(noted["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{self._path}: cannot be read: {error}; remove it to lose the times and steps of earlier sessions"
            ) from error

    def resume(self, stats: RunStats) -> None:
        """Add the steps of earlier sessions to `stats`, which is saved from now on."""
        add_work(stats, self._earlier)
        self._stats = stats

    def save(self) -> None:
        """Save the work so far. Raises OutputError if the file cannot be written."""
        if self._stats is None:
            return
        with atomic_write(self._path) as temporary:
            noted = {"seconds": self._watch.seconds(), "steps": work_of(self._stats)}
            temporary.write_text(json.dumps(noted), encoding="utf-8")
