"""The page: one file that needs nothing else, that says what the report says, and sums it up in sentences."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from batchgen.stats.artifact import RunArtifact
from batchgen.stats.format import nonbreaking
from batchgen.stats.page import render_page, summary
from batchgen.stats.report import RunReport
from tests.stats.scripted import run_script

VOID = {"wbr", "meta", "br", "path", "use", "rect"}  # these of our elements have no end tag, or close themselves


class Tags(HTMLParser):
    """Counts elements and checks that they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def artifact() -> RunArtifact:
    return run_script([f"{letter * 8}{end}" for letter in "abcd" for end in "xyz"]).artifact()


@pytest.fixture(scope="module")
def page(artifact: RunArtifact) -> str:
    return render_page(artifact)


def test_it_asks_for_nothing_from_anywhere(page: str) -> None:
    assert not re.search(r"https?:|src=|@import|<script|<link|<iframe", page)
    assert set(re.findall(r"(?:href=\"|url\()(.)", page)) <= {"#"}


def test_it_is_well_formed_and_fits_a_phone(page: str) -> None:
    counts = Tags(page).counts
    assert counts["h1"] == 1
    assert counts["svg"] == 4  # two plots, each wide and narrow
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page


def test_it_begins_with_what_was_achieved_beside_what_was_possible(page: str) -> None:
    sentence = page.index("64 of 108 prompt tokens (59.3\u00a0%) were reused: all that this job&#39;s prompts allow")
    assert page.index("<h1>night-1</h1>") < sentence < page.index("<h2>")


def test_it_shows_settings_with_their_sources(page: str) -> None:
    page = page.replace("<wbr>", "")  # where a long key may be broken
    assert re.search(r"engine\.num_blocks</code></td><td[^>]*>1000</td><td>--set</td>", page)
    defaults = page[page.index("<details>") :]
    assert "engine.block_size" in defaults
    assert "engine.num_blocks" not in defaults


def test_the_diagnosis_is_shown(page: str) -> None:
    assert "<p>none: neither a small pool" in page
    [finding] = run_script(["aaaa", "bbbb", "cccc"] * 3, num_blocks=4).report.findings
    shown = render_page(run_script(["aaaa", "bbbb", "cccc"] * 3, num_blocks=4).artifact())
    assert f"<strong>{finding.title}</strong>: {nonbreaking(finding.cost)}. {finding.cure}." in shown


def test_text_of_the_user_is_text(artifact: RunArtifact) -> None:
    errors = {"<script>alert(1)</script>": 3}
    shown = render_page(replace(artifact, report=replace(artifact.report, errors=errors)))
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_twenty_groups_and_the_rows_in_none_are_shown() -> None:
    many = [chr(200 + group) * 4 + end for group in range(25) for end in "xy"] + ["q"]
    shown = render_page(run_script(many).artifact())
    assert shown.count("<td>no group</td>") == 1
    assert "5 more are in stats/groups.parquet" in shown


def test_a_job_without_a_row_that_ran_has_a_page() -> None:
    shown = render_page(run_script([]).artifact())
    Tags(shown)
    assert shown.count("No plot: no step ran.") == 2


def test_without_matplotlib_page_and_log_say_what_adds_the_plots(
    artifact: RunArtifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.INFO, "batchgen"):
        shown = render_page(artifact)
    assert Tags(shown).counts["svg"] == 0
    assert shown.count("pip install &#39;batchgen[report]&#39;") + shown.count("pip install 'batchgen[report]'") == 2
    assert [record.getMessage() for record in caplog.records] == [
        "report.html has no plots: pip install 'batchgen[report]' adds them"
    ]


def test_matplotlib_is_imported_only_for_plots() -> None:
    code = "import sys, batchgen.stats.page; print([name for name in ('matplotlib', 'torch') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


SHARED = ["aaaaaaaab", "aaaaaaaac", "aaaaaaaad"]


def sentences(report: RunReport, prefix_cache: bool = True) -> str:
    return "\n".join(summary(report, prefix_cache=prefix_cache))


def test_summary_of_all_that_is_possible() -> None:
    text = sentences(run_script(SHARED).report)
    assert "16 of 27 prompt tokens (59.3 %) were reused: all that this job's prompts allow at block size 4." in text


def test_summary_of_less_than_possible() -> None:
    text = sentences(replace(run_script(SHARED).report, num_hit_tokens=8, hit_efficiency=0.5))
    assert "were reused, 50.0 % of the 16 that this job's prompts allow" in text


def test_summary_of_nothing_to_reuse() -> None:
    assert "No prompt token could be reused" in sentences(run_script(["abcd", "efgh"]).report)


def test_summary_without_a_cache() -> None:
    assert "engine.prefix_cache was false" in sentences(run_script(["abcd", "efgh"]).report, prefix_cache=False)


def test_the_time_saved_is_that_of_this_runs_prefill() -> None:
    report = run_script(SHARED).report  # 16 tokens reused, 11 computed
    report = replace(report, seconds={**report.seconds, "prefill": 22.0})
    assert "would have taken 32 s more" in sentences(report)


def test_summary_of_a_run_of_nothing_says_only_that() -> None:
    assert sentences(run_script([]).report) == "0 rows in 66 s; none failed."


def test_copies_are_told_apart_from_full_blocks() -> None:
    text = sentences(run_script(["aaaabbbb", "aaaabbcc"], max_num_seqs=1).report)
    assert "4 of 16 prompt tokens (25.0 %) were reused" in text
    assert "2 more were copied" in text
