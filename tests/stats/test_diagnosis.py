"""The diagnosis of scripted jobs, one for each pressure, run by the real plan and scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchgen.stats.diagnosis import diagnose, finding_lines
from batchgen.stats.report import RunReport
from tests.stats.harness import run_script


def prompts(num_groups: int, num_rows: int, prefix: int, own: int) -> list[str]:
    """Return rows of all groups in turn, each with `prefix` characters of its group and `own` of its own."""
    return [chr(65 + group) * prefix + chr(97 + row) * own for row in range(num_rows) for group in range(num_groups)]


LONG = prompts(8, 8, prefix=64, own=40)


def kinds(report: RunReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_well_configured_job_has_no_finding() -> None:
    report = run_script(LONG, block_size=16, max_tokens=32, max_batched_tokens=2048).report
    assert report.findings == []
    assert finding_lines(report.findings)[0].startswith("none: ")


def test_a_tiny_pool_makes_rows_wait() -> None:
    report = run_script(LONG, block_size=16, max_tokens=32, num_blocks=24).report
    assert kinds(report) == ["pool"]
    [finding] = report.findings
    assert f"in {report.num_waiting_steps:,} of {report.num_steps:,} steps" in finding.cost
    assert "Raise engine.num_blocks (now 24), or leave it out" in finding.cure


def test_a_tiny_pool_that_admits_too_many_rows_recomputes_tokens() -> None:
    report = run_script(LONG, block_size=16, max_tokens=32, num_blocks=24, expected_tokens=1).report
    assert kinds(report) == ["pool"]
    [finding] = report.findings
    assert f"{report.num_preemptions} preemptions caused {report.num_recomputed_tokens:,} tokens" in finding.cost
    assert "a higher engine.expected_tokens" in finding.cure


def test_large_blocks_on_short_rows_are_padding() -> None:
    report = run_script(prompts(8, 8, prefix=20, own=20), block_size=128).report
    assert kinds(report) == ["padding"]
    [finding] = report.findings
    assert "of the KV slots held were empty" in finding.cost
    assert "896 more prompt tokens" in finding.cost  # 7 rows in each of 8 groups, 16 tokens each
    assert finding.cure == "Set engine.block_size: 16"


def test_input_order_with_many_groups_loses_their_prefixes() -> None:
    many = prompts(24, 8, prefix=64, own=8)
    by_input = run_script(many, block_size=16, num_blocks=100, order="input").report
    assert kinds(by_input) == ["retention"]
    [finding] = by_input.findings
    assert f"{by_input.hit_ceiling - by_input.num_hit_tokens:,} prompt tokens" in finding.cost
    assert finding.cure.startswith("Set engine.order: prefix")
    assert run_script(many, block_size=16, num_blocks=100).report.findings == []


@pytest.mark.parametrize(("hits", "expected"), [(951, []), (950, ["retention"])])
def test_a_pressure_is_named_from_its_threshold_on(hits: int, expected: list[str]) -> None:
    """Of 1,000 computed tokens, 49 or 50 could have been found in the cache."""
    report = run_script(LONG, block_size=16).report
    report = replace(
        report, hit_ceiling=1000, num_hit_tokens=hits, num_prefill_tokens=900, num_decode_tokens=100, ceilings={}
    )
    assert [finding.kind for finding in diagnose(report)] == expected


def test_a_run_without_rows_has_no_finding() -> None:
    assert run_script([]).report.findings == []
