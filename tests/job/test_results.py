"""Results: a row is written and counted when its last sample has ended."""

from __future__ import annotations

from pathlib import Path

from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.journal import committed_chunks, read_endings
from batchgen.io.output.writers import ResultWriter
from batchgen.job.results import Results, WorkLog
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.stopwatch import Stopwatch


def make_results(folder: Path) -> tuple[Results, OutputFolder]:
    output = OutputFolder(folder)
    output.claim()
    output.begin("{}")
    return Results(ResultWriter(output), None, WorkLog(output, Stopwatch())), output


def sample(row: int, number: int, reason: FinishReason = FinishReason.STOP) -> RequestOutput:
    return RequestOutput(row, reason, number, error="broken" if reason is FinishReason.ERROR else None)


def committed(output: OutputFolder) -> list[tuple[int, int]]:
    return [(each.row_index, each.sample_index) for each in read_endings(committed_chunks(output.journal))]


def test_a_row_with_a_sample_to_come_is_not_committed(tmp_path: Path) -> None:
    results, output = make_results(tmp_path / "out")
    with results.committed_at_end():
        for each in (sample(1, 1), sample(0, 0), sample(1, 0)):
            results.add(each, num_samples=2)
    assert committed(output) == [(1, 0), (1, 1)]
    assert results.counts.num_done == 1


def test_a_row_is_as_bad_as_its_worst_sample(tmp_path: Path) -> None:
    results, _ = make_results(tmp_path / "out")
    for each in (sample(0, 0), sample(0, 1, FinishReason.ERROR), sample(1, 0), sample(1, 1)):
        results.add(each, num_samples=2)
    assert (results.counts.num_ok, results.counts.num_failed) == (1, 1)


def test_a_row_that_never_ran_has_one_output(tmp_path: Path) -> None:
    results, output = make_results(tmp_path / "out")
    with results.committed_at_end():
        results.fail(3, "no prompt")
    assert committed(output) == [(3, 0)]
