"""RunReport: its JSON is read back equal, other JSON is refused, and the table fits its width."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.report import SCHEMA_VERSION, RowCounts, RunReport
from tests.stats.harness import run_script


@pytest.fixture(scope="module")
def report() -> RunReport:
    """A report that has everything: groups, findings, slow rows and errors."""
    made = run_script(["aaaaaaaab", "aaaaaaaac", "q"] * 4, block_size=4, num_blocks=6, max_num_seqs=8).report
    assert made.findings
    return replace(made, errors={"too long": 2})


def test_a_report_read_from_its_json_is_equal(report: RunReport) -> None:
    assert RunReport.from_json(report.to_json()) == report


def test_json_has_the_findings_as_a_list(report: RunReport) -> None:
    findings = json.loads(report.to_json())["findings"]
    assert [set(finding) for finding in findings] == [{"kind", "cost", "cure"}] * len(report.findings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, f"schema_version is {SCHEMA_VERSION + 1}"),
        ({"num_rows_of_tomorrow": 1}, "num_rows_of_tomorrow"),
        ({"ceilings": None}, "the fields are not those of a report"),
    ],
)
def test_json_of_another_version_is_refused(report: RunReport, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunReport.from_json(json.dumps({**json.loads(report.to_json()), **change}))


@pytest.mark.parametrize("text", ["[]", "{}", "", "{"])
def test_text_that_is_not_a_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own message, or ours
        RunReport.from_json(text)


def test_the_table_ends_with_the_diagnosis_in_lines_of_at_most_120_characters(report: RunReport) -> None:
    lines = report.table().splitlines()
    starts = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert starts[-1] == "diagnosis"
    diagnosis = lines[next(n for n, line in enumerate(lines) if line.startswith("diagnosis")) :]
    assert all(finding.title in " ".join(diagnosis) for finding in report.findings)
    assert max(map(len, diagnosis)) <= 120


def test_errors_of_one_kind_are_counted_together() -> None:
    rows = RowCounts()
    for row in (3, 17):
        error = f"in.jsonl line {row}: the prompt has {1000 * row} tokens"
        rows.observe(RequestOutput(row, FinishReason.ERROR, error=error))
    assert rows.errors == Counter({"the prompt has … tokens": 2})
