"""What a run leaves behind, what a second run into the same folder does, and what a refused one does not do."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from tests.end_to_end.harness import ADDED, Result, TinyRunner, prompts, snapshot
from tests.tiny_models import uniform_model

NUM_ROWS = 300  # more than one batch of the reader, more than run at once
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def wide_table() -> pa.Table:
    """Prompts and columns of many types; every tenth prompt is null."""
    numbers = range(NUM_ROWS)
    return pa.table(
        {
            "day": pa.array([datetime.date(2024, 1, 1 + n % 28) for n in numbers], pa.date32()),
            "prompt": pa.array([None if n % 10 == 9 else f"note {LETTERS[n % 26]}" for n in numbers], pa.string()),
            "score": pa.array([n / 7 for n in numbers], pa.float32()),
            "tags": pa.array([[f"t{n}"] * (n % 3) for n in numbers], pa.list_(pa.string())),
            "meta": pa.array([{"n": n, "s": None} for n in numbers], pa.struct({"n": pa.int16(), "s": pa.string()})),
            "price": pa.array([None] * NUM_ROWS, pa.decimal128(9, 2)),
            "at": pa.array([n * 10**9 for n in numbers], pa.timestamp("us", "Europe/Berlin")),
            "kind": pa.array([f"k{n % 4}" for n in numbers]).dictionary_encode(),
            "blob": pa.array([bytes([n % 256]) for n in numbers], pa.large_binary()),
        }
    )


def answers() -> list[str | None]:
    return [None if n % 10 == 9 else LETTERS[n % 26].upper() for n in range(NUM_ROWS)]


@pytest.fixture
def finished(run_tiny: TinyRunner) -> Result:
    """A finished run whose output folder `out` later runs may meet."""
    result = run_tiny(prompts("note a", "note b"), output={"path": "out"})
    assert result.exit_code == 0
    return result


def test_every_row_comes_back_in_order_with_its_columns(run_tiny: TinyRunner) -> None:
    table = wide_table()
    result = run_tiny(table)
    assert result.exit_code == 3
    output = result.table
    assert output.num_rows == NUM_ROWS
    assert output.select(table.column_names).equals(table)
    assert [(field.name, field.type) for field in output.schema] == [
        *[(field.name, field.type) for field in table.schema],
        *ADDED,
    ]
    assert result.completions == answers()
    assert set(result.column("sample_index")) == {0}


def test_completions_open_with_pandas(run_tiny: TinyRunner) -> None:
    result = run_tiny(wide_table())
    frame = pd.read_parquet(result.folder / "completions")
    assert len(frame) == NUM_ROWS
    assert frame["completion"].dropna().tolist() == [text for text in answers() if text]
    assert list(frame.columns[-len(ADDED) :]) == [name for name, _ in ADDED]


def test_json_lines_come_back_with_the_types_of_their_values(run_tiny: TinyRunner) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "prompt": "note a", "x": 0.5, "ok": True, "list": [1], "map": {"k": "v"}},
        {"id": 2, "prompt": "note b", "late": "y"},
    ]
    result = run_tiny(rows)
    types = {field.name: field.type for field in result.table.schema}
    assert list(types)[:7] == ["id", "prompt", "x", "ok", "list", "map", "late"]
    assert (types["id"], types["x"], types["ok"], types["late"]) == (pa.int64(), pa.float64(), pa.bool_(), pa.string())
    assert [{key: row[key] for key in given} for row, given in zip(result.rows, rows, strict=True)] == rows


def test_folder_holds_what_is_declared_and_no_state(finished: Result) -> None:
    names = sorted(path.name for path in finished.folder.iterdir())
    assert names == ["_SUCCESS", "completions", "job.yaml", "report.html", "report.json", "stats"]
    assert sorted(path.stem for path in (finished.folder / "stats").iterdir()) == ["groups", "job", "steps"]
    assert [path.name for path in (finished.folder / "completions").iterdir()] == ["part-00000.parquet"]


def test_success_is_written_last(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    replace = Path.replace

    def noted(path: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    run_tiny(prompts("note a"))
    assert renamed.index("_SUCCESS") == len(renamed) - 1
    assert {"part-00000.parquet", "report.json", "job.yaml"} <= set(renamed)


def test_report_is_versioned_and_matches_the_file(run_tiny: TinyRunner) -> None:
    result = run_tiny(wide_table())
    report = result.report
    assert report["schema_version"] >= 1
    reasons = result.column("finish_reason")
    assert report["num_rows"] == len(reasons)
    assert report["num_failed"] == reasons.count("error") == 30
    assert report["num_ok"] == 270
    assert report["num_output_tokens"] == sum(count or 0 for count in result.column("completion_tokens"))
    assert report["num_prompt_tokens"] == sum(count or 0 for count in result.column("prompt_tokens"))
    assert list(report["errors"].values()) == [30]
    assert report["environment"]["dtype"] == "float32"


def test_resolved_job_runs_again_with_the_same_answers(run_tiny: TinyRunner, tmp_path: Path) -> None:
    """Its seed was drawn, not given."""
    sampling = {"temperature": 1}
    first = run_tiny(prompts("x", "y", "z"), model=uniform_model, sampling=sampling, input={"limit": 2})
    job_file = tmp_path / "again.yaml"
    with job_file.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(first.resolved["job"], file)
    before = first.completions
    again = run_tiny.run_file(job_file, [f"output.path={tmp_path / 'again'}"])
    assert again.exit_code == 0
    assert again.folder == tmp_path / "again"
    assert again.completions == before


def test_second_run_into_a_finished_folder_is_refused(run_tiny: TinyRunner, finished: Result) -> None:
    before = snapshot(finished.folder)
    result = run_tiny(prompts("note c"), output={"path": "out"})
    assert result.exit_code == 2
    assert "output.overwrite" in result.error
    assert str(finished.folder) in result.error
    assert snapshot(finished.folder) == before


def test_second_run_with_overwrite_replaces_the_first(run_tiny: TinyRunner, finished: Result) -> None:
    result = run_tiny(prompts("note c"), output={"path": "out", "overwrite": True})
    assert (result.exit_code, result.folder, result.completions) == (0, finished.folder, ["C"])
    assert (finished.folder / "_SUCCESS").exists()


def damaged_parquet(folder: Path) -> Path:
    """A Parquet file whose first data page is overwritten: only reading its rows shows it."""
    path = folder / "damaged.parquet"
    pq.write_table(pa.table({"prompt": [f"note {n} a" for n in range(1000)]}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("overwrite", [True, False], ids=["over-a-run", "new-folder"])
@pytest.mark.parametrize("what", ["damaged", "doubled-column", "no-model", "no-memory"])
def test_refused_run_changes_nothing(
    run_tiny: TinyRunner, finished: Result, tmp_path: Path, what: str, overwrite: bool
) -> None:
    """Doubled: a column named like one of ours, known only when the last line of the file is read."""
    before = snapshot(finished.folder)
    job: dict[str, Any] = {"rows": prompts("note a")}
    if what == "damaged":
        job["rows"] = damaged_parquet(tmp_path)
    elif what == "doubled-column":
        job["rows"] = [*prompts("note a"), {"prompt": "note b", "completion": "x"}]
    elif what == "no-model":
        job["model"] = tmp_path / "nothing"
    else:
        job["engine"] = {"num_blocks": 2**31 - 1}
    output = {"path": "out", "overwrite": True} if overwrite else {"path": "new"}
    result = run_tiny(**job, output=output)
    assert result.exit_code == 2
    assert snapshot(finished.folder) == before
    assert not (result.folder / ".state").exists()
    assert not any((tmp_path / "new").glob("*"))
    # Nothing stands in the way of the mended job.
    assert run_tiny(prompts("note c"), output=output).completions == ["C"]


def test_damaged_input_is_named(run_tiny: TinyRunner, tmp_path: Path) -> None:
    path = damaged_parquet(tmp_path)
    assert str(path) in run_tiny(path).error


def test_folder_of_someone_else_is_not_touched(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "report.json").write_text("my own")
    result = run_tiny(prompts("note a"), output={"path": "mine"})
    assert result.exit_code == 2
    assert os.listdir(folder) == ["report.json"]
