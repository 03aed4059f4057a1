"""The tables of stats/: their contents, that their columns are the same in every run, and that each is documented."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.stats.counters import RunStats
from batchgen.stats.report import ENVIRONMENT, PlannedFigures, RowCounts, make_report
from batchgen.stats.tables import GROUPS, JOB, STEPS, GroupPrefix, groups_table, job_table, steps_table
from tests.stats.harness import ScriptedRun, run_script

DOCS = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
SCHEMAS = {"job": JOB, "groups": GROUPS, "steps": STEPS}
UNITS = {"rows", "tokens", "steps", "blocks", "slots", "groups", "seconds", "tokens/s", "share"}
UNITS |= {"preemptions", "allocations", "-"}
CAUSES = ("num_miss_first", "num_miss_tail", "num_miss_last", "num_miss_evicted", "num_miss_order", "num_miss_scored")


@pytest.fixture(scope="module")
def run() -> ScriptedRun:
    """A run of two groups of three rows, and one row in no group."""
    return run_script(["aaaaaaaab", "aaaaaaaac", "aaaaaaaad", "xxxxy", "xxxxz", "xxxxw", "q"], max_tokens=3)


def documented(table: str) -> list[list[str]]:
    """Return the cells of every line in the table of columns in docs/report.md."""
    section = DOCS[DOCS.index(f"## stats/{table}.parquet") :].split("\n## ")[0]
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| `.*$", section, re.M)]


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_documented(table: str) -> None:
    lines = documented(table)
    assert [(name, kind) for name, kind, _, _ in lines] == [(field.name, str(field.type)) for field in SCHEMAS[table]]
    assert {unit for _, _, unit, _ in lines} <= UNITS
    assert all(meaning for *_, meaning in lines)


def test_job_has_one_row_with_every_figure_of_the_report(run: ScriptedRun) -> None:
    [row] = job_table(run.report).to_pylist()
    report = asdict(run.report)
    for size, tokens in report.pop("ceilings").items():
        assert row.pop(f"hit_ceiling_{size}") == tokens
    for part, seconds in report.pop("seconds").items():
        assert row.pop(f"seconds_{part}") == seconds
    for name, value in report.pop("environment").items():
        assert row.pop(f"environment_{name}") == value
    row["errors"] = dict(row["errors"])
    assert row == report


def test_a_run_without_rows_has_the_same_columns(run: ScriptedRun) -> None:
    environment = dict.fromkeys(ENVIRONMENT, "1.0")
    empty = make_report(
        RowCounts(num_failed=1), RunStats(16, 64), PlannedFigures(),
        started="2026-01-01T00:00:00", visiting_order="input", seconds={"total": 1.0}, environment=environment,
    )  # fmt: skip
    both = pa.concat_tables([job_table(run.report), job_table(empty)])
    assert both["seconds_run"].to_pylist() == [60.0, None]
    assert both["hit_rate"].to_pylist()[1] is None


def test_the_tables_survive_parquet(run: ScriptedRun, tmp_path: Path) -> None:
    for table in (job_table(run.report), run.artifact().groups, run.artifact().steps):
        pq.write_table(table, tmp_path / "table.parquet")
        assert pq.read_table(tmp_path / "table.parquet").equals(table)


def test_groups_and_the_rest_add_up_to_the_job(run: ScriptedRun) -> None:
    rows = groups_table(run.stats.groups, lambda group: GroupPrefix(10 * group, 4 + group)).to_pylist()
    assert [row["group_number"] for row in rows] == [0, 1, None]
    assert [row["num_rows"] for row in rows] == [3, 3, 1]
    assert [(row["first_row_index"], row["num_prefix_tokens"]) for row in rows] == [(0, 4), (10, 5), (None, None)]
    for name in ("num_prompt_tokens", "num_hit_tokens", "num_copied_tokens", "num_output_tokens", *CAUSES):
        assert sum(row[name] for row in rows) == getattr(run.report, name)
    for row in rows:
        assert row["num_prompt_tokens"] == row["num_hit_tokens"] + row["num_copied_tokens"] + sum(
            row[cause] for cause in CAUSES
        )


def test_steps_split_the_pool(run: ScriptedRun) -> None:
    steps = steps_table(run.stats.log).to_pylist()
    assert [step["step"] for step in steps] == [*range(run.report.num_steps)]
    for step in steps:
        assert step["num_used_blocks"] + step["num_idle_blocks"] + step["num_free_blocks"] == run.report.num_blocks
    assert sum(step["num_prefill_tokens"] for step in steps) == run.report.num_prefill_tokens
