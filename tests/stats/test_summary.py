"""A run in sentences."""

from __future__ import annotations

from dataclasses import replace

from batchgen.stats.page import summary
from batchgen.stats.report import RunReport
from tests.stats.scripted import run_script

SHARED = ["aaaaaaaab", "aaaaaaaac", "aaaaaaaad"]


def sentences(report: RunReport, prefix_cache: bool = True) -> str:
    return "\n".join(summary(report, prefix_cache=prefix_cache))


def test_all_that_is_possible() -> None:
    text = sentences(run_script(SHARED).report)
    assert "16 of 27 prompt tokens (59.3 %) were reused: all that this job's prompts allow at block size 4." in text


def test_less_than_possible() -> None:
    text = sentences(replace(run_script(SHARED).report, num_hit_tokens=8, hit_efficiency=0.5))
    assert "were reused, 50.0 % of the 16 that this job's prompts allow" in text


def test_nothing_to_reuse() -> None:
    assert "No prompt token could be reused" in sentences(run_script(["abcd", "efgh"]).report)


def test_the_cache_was_off() -> None:
    assert "engine.prefix_cache was false" in sentences(run_script(["abcd", "efgh"]).report, prefix_cache=False)


def test_the_time_saved_is_that_of_this_runs_prefill() -> None:
    report = run_script(SHARED).report  # 16 tokens reused, 11 computed
    report = replace(report, seconds={**report.seconds, "prefill": 22.0})
    assert "would have taken 32 s more" in sentences(report)


def test_a_run_of_nothing_says_only_that() -> None:
    assert sentences(run_script([]).report) == "0 rows in 66 s; none failed."


def test_copies_are_told_apart_from_full_blocks() -> None:
    text = sentences(run_script(["aaaabbbb", "aaaabbcc"], max_num_seqs=1).report)
    assert "4 of 16 prompt tokens (25.0 %) were reused" in text
    assert "2 more were copied" in text
