"""The comparison of runs: their order, and which figures get a star."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchgen.stats.compare import compare
from batchgen.stats.report import RunReport
from tests.stats.harness import run_script


@pytest.fixture(scope="module")
def monday() -> RunReport:
    report = run_script(["aaaaaaaab", "aaaaaaaac", "q"]).report
    return replace(report, started="2026-01-05T01:00:00", output_tokens_per_second=100.0)


def cells(table: str, name: str) -> list[str]:
    [line] = [line for line in table.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).split()


def test_the_oldest_run_comes_first(monday: RunReport) -> None:
    sunday = replace(monday, started="2026-01-04T01:00:00")
    assert compare({"new": monday, "old": sunday}).splitlines()[0].split() == ["old", "new"]


def test_only_what_changed_by_more_than_a_few_percent_is_marked(monday: RunReport) -> None:
    tuesday = replace(monday, started="2026-01-06T01:00:00", output_tokens_per_second=97.0)
    wednesday = replace(monday, started="2026-01-07T01:00:00", output_tokens_per_second=90.0)
    table = compare({"mon": monday, "tue": tuesday, "wed": wednesday})
    assert cells(table, "output_tokens_per_second") == ["100.0", "97.0", "90.0", "*"]
    assert table.count("*") == 2  # this one, and the legend


def test_a_figure_that_one_of_two_runs_lacks_is_marked(monday: RunReport) -> None:
    nothing = replace(monday, started="2026-01-06T01:00:00", hit_rate=None)
    assert cells(compare({"mon": monday, "tue": nothing}), "hit_rate")[-2:] == ["-", "*"]


def test_another_device_and_diagnosis_are_marked(monday: RunReport) -> None:
    changed = replace(
        monday,
        started="2026-01-06T01:00:00",
        environment={**monday.environment, "device": "cuda"},
        findings=run_script(["aaaa", "bbbb", "cccc"] * 3, num_blocks=4).report.findings,
    )
    table = compare({"mon": monday, "tue": changed})
    assert cells(table, "device") == ["1.0", "cuda", "*"]
    assert cells(table, "diagnosis") == ["none", "pool", "*"]


def test_columns_line_up(monday: RunReport) -> None:
    lines = compare({"mon": monday, "tue": monday}).splitlines()[:-1]
    assert len({len(line) for line in lines}) == 1
