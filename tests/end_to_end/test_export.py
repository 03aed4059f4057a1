"""What `status` and `export` show of an unfinished run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from click.testing import Result as CliResult

from batchgen.cli import main
from batchgen.io.output.lock import RunLock
from tests.end_to_end.harness import TinyRunner
from tests.end_to_end.interrupted import stopped


def command(*arguments: object) -> CliResult:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_status_of_a_stopped_and_of_a_finished_run(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    folder = job_file.with_suffix("")
    shown = command("status", folder)
    assert (shown.exit_code, shown.stdout.splitlines()[1]) == (0, "committed=3 ok=3 failed=0")
    assert "not running" in shown.stdout
    lock = RunLock(folder / ".state/lock")
    lock.acquire()
    assert f"running: process {os.getpid()} on " in command("status", folder).stdout
    lock.release()
    run_tiny.run_file(job_file)
    assert command("status", folder).stdout == "finished\nok=8 failed=0\n"


def test_export_gives_the_committed_rows_in_input_order(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch, 5)
    partial = run_tiny.folder / "partial"
    assert command("export", job_file.with_suffix(""), "--to", partial).stdout == "rows=5\n"
    exported = pq.read_table(partial).to_pylist()
    finished = run_tiny.run_file(job_file)
    rows = [row["row_index"] for row in exported]
    assert rows == sorted({*rows})
    assert [row["completion"] for row in exported] == [finished.completions[row] for row in rows]
    again = command("export", finished.folder, "--to", run_tiny.folder / "late")
    assert (again.exit_code, again.stderr.count("the run is finished")) == (2, 1)


def test_export_writes_into_no_folder_that_holds_something(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    result = command("export", job_file.with_suffix(""), "--to", run_tiny.folder)
    assert (result.exit_code, result.stderr.count("is not empty")) == (2, 1)


def test_folder_without_a_run_has_no_status(tmp_path: Path) -> None:
    assert command("status", tmp_path).exit_code == 2


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_export_with_the_job_file_has_the_inputs_columns(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    output, sampling = {"format": format, "prefix": "gen_"}, {"temperature": 1, "seed": 1}
    job_file = stopped(run_tiny, monkeypatch, output=output, sampling=sampling)
    partial = run_tiny.folder / "partial"
    export = ("export", job_file.with_suffix(""), "--to", partial, "--job", job_file)
    assert command(*export).stdout == "rows=3\n"
    (part,) = partial.iterdir()
    rows = pq.read_table(part).to_pylist() if format == "parquet" else read_lines(part)
    finished = run_tiny.run_file(
        job_file, [f"output.path={run_tiny.folder / 'uninterrupted'}", "output.format=parquet"]
    )
    answer_of = {row["prompt"]: row["gen_completion"] for row in finished.rows}
    assert [row["prompt"] for row in rows] == sorted(row["prompt"] for row in rows)
    assert len(rows) == 3
    assert [row["gen_completion"] for row in rows] == [answer_of[row["prompt"]] for row in rows]


def test_export_refuses_an_input_that_was_changed(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    path = job_file.with_name(f"{job_file.stem}-in.jsonl")
    path.write_bytes(path.read_bytes().replace(b"row 0", b"row X"))
    result = command("export", job_file.with_suffix(""), "--to", run_tiny.folder / "partial", "--job", job_file)
    assert result.exit_code == 2
    assert f"{path}: has changed since the run began" in result.stderr
