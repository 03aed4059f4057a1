"""An artifact is read back equal to what was written; a folder without a finished run is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import OutputError
from batchgen.io.output.folder import OutputFolder
from batchgen.job.run import write_report
from batchgen.stats.artifact import RunArtifact, read_artifact, read_report
from batchgen.stats.page import render_page
from tests.stats.harness import run_script


@pytest.fixture
def written() -> RunArtifact:
    return run_script(["aaaab", "aaaac", "q"]).artifact()


@pytest.fixture
def finished(tmp_path: Path, written: RunArtifact) -> Path:
    folder = OutputFolder(tmp_path / "out")
    folder.claim()
    folder.begin("{}")
    write_report(folder, written)
    folder.mark_success()
    return tmp_path / "out"


def test_what_is_read_equals_what_was_written(finished: Path, written: RunArtifact) -> None:
    assert read_artifact(finished) == written
    assert read_report(finished) == written.report


def test_the_page_rendered_again_is_the_same(finished: Path) -> None:
    assert render_page(read_artifact(finished)) == (finished / "report.html").read_text(encoding="utf-8")


def test_an_unfinished_run_is_refused(finished: Path) -> None:
    (finished / "_SUCCESS").unlink()
    with pytest.raises(OutputError, match=f"^{finished}: no finished run"):
        read_report(finished)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere: no finished run"):
        read_artifact(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["report.json", "stats/groups.parquet", "stats/steps.parquet", "job.yaml"])
def test_a_file_that_is_missing_or_damaged_is_named(finished: Path, name: str) -> None:
    (finished / name).write_bytes(b"\xff: [")
    with pytest.raises(OutputError, match=f"{name}: cannot be read"):
        read_artifact(finished)
    (finished / name).unlink()
    with pytest.raises(OutputError, match=f"{name}: missing"):
        read_artifact(finished)


def test_a_table_with_other_columns_is_named(finished: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), finished / "stats/steps.parquet")
    with pytest.raises(OutputError, match=r"steps\.parquet: cannot be read: its columns are a; expected"):
        read_artifact(finished)


@pytest.mark.parametrize("text", ["", "job: {}\n", "- 1\n"])
def test_a_job_file_that_batchgen_did_not_write_is_named(finished: Path, text: str) -> None:
    (finished / "job.yaml").write_text(text)
    with pytest.raises(OutputError, match=r"job\.yaml: cannot be read: not a job\.yaml that batchgen wrote"):
        read_artifact(finished)


@pytest.mark.parametrize(("key", "value"), [("seconds", {}), ("num_rows", "x")])
def test_a_report_with_other_values_is_named(finished: Path, key: str, value: object) -> None:
    values = json.loads((finished / "report.json").read_text())
    (finished / "report.json").write_text(json.dumps({**values, key: value}))
    with pytest.raises(OutputError, match=r"report\.json: cannot be read: the fields are not those of a report"):
        read_report(finished)
