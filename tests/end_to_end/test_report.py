"""The report that a run leaves: figures that agree with the rows, the same columns whatever ran, a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.stats.artifact import read_artifact
from batchgen.stats.page import render_page
from batchgen.stats.tables import GROUPS, JOB, STEPS
from tests.end_to_end.harness import Result, TinyRunner, prompts

SHARED = ("north of the river ", "over the old bridge ", "behind the green hill ")
LETTERS = "abcd"
BLOCK_SIZE = 4
FIGURES = {
    "prompt_tokens": ["num_prompt_tokens"],
    "cached_tokens": ["num_hit_tokens", "num_copied_tokens"],
    "completion_tokens": ["num_output_tokens"],
}


def rows() -> list[dict[str, Any]]:
    """Four rows of three groups in turn, one with nothing in common, and one without a prompt. A letter is a token."""
    grouped = [f"{prefix}{letter}" for letter in LETTERS for prefix in SHARED]
    return [*prompts(*grouped, "zzz"), {"prompt": None}]


def stats(result: Result, table: str) -> pa.Table:
    return pq.read_table(result.folder / f"stats/{table}.parquet")


@pytest.fixture(params=["prefix", "input"])
def result(request: pytest.FixtureRequest, run_tiny: TinyRunner) -> Result:
    engine = {"block_size": BLOCK_SIZE, "order": request.param, "max_num_seqs": 2}
    return run_tiny(rows(), engine=engine, input={"text": "prompt", "prompt": None})


def test_groups_agree_with_the_rows_in_either_order(result: Result) -> None:
    groups = stats(result, "groups").to_pylist()
    assert {(group["first_row_index"], group["num_rows"]) for group in groups} == {(0, 4), (1, 4), (2, 4), (None, 1)}
    for group in groups[:-1]:
        first = group["first_row_index"]
        assert group["num_prefix_tokens"] == len(SHARED[first]) // BLOCK_SIZE * BLOCK_SIZE
        for column, figures in FIGURES.items():
            assert sum(group[name] for name in figures) == sum(result.column(column)[first : 3 * len(LETTERS) : 3])


def test_job_is_the_report_and_its_rows(result: Result) -> None:
    [job] = stats(result, "job").to_pylist()
    report = result.report
    assert job["num_hit_tokens"] == report["num_hit_tokens"]
    assert job["num_hit_tokens"] + job["num_copied_tokens"] == sum(filter(None, result.column("cached_tokens")))
    assert job["hit_ceiling_8"] == report["ceilings"]["8"]
    assert (job["num_ok"], job["num_failed"], job["num_groups"]) == (13, 1, 3)
    assert job["seconds_run"] == report["seconds"]["run"]
    assert len(job["slowest_rows"]) == 13


def test_the_page_is_made_anew_from_the_folder(result: Result) -> None:
    assert (result.folder / "report.html").read_text(encoding="utf-8") == render_page(read_artifact(result.folder))


def test_a_job_without_a_good_row_leaves_the_same_columns(run_tiny: TinyRunner) -> None:
    result = run_tiny([{"prompt": None}])
    assert (result.exit_code, result.report["findings"]) == (3, [])
    for name, schema in (("job", JOB), ("groups", GROUPS), ("steps", STEPS)):
        assert stats(result, name).schema.equals(schema)
    assert (result.folder / "report.html").exists()


def test_overwriting_leaves_no_table_of_the_run_before(run_tiny: TinyRunner, tmp_path: Path) -> None:
    first = run_tiny(rows(), output={"path": "out"})
    second = run_tiny([{"prompt": None}], output={"path": "out", "overwrite": True})
    assert first.folder == second.folder
    assert stats(second, "steps").num_rows == 0
