"""The report of a run that took several sessions: rows, hits and limits of all of them, each row counted once."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from batchgen.io.output.writers import ResultWriter
from batchgen.job import run as run_room
from batchgen.job.results import Results
from tests.end_to_end.harness import Result, TinyRunner
from tests.end_to_end.interrupted import Stop, stop_after
from tests.tiny_models import uniform_model

SHARED = "the same long beginning for all of them, row"
ROWS = [{"prompt": f"{SHARED} {n}"} for n in range(8)] + [{"prompt": None}]
MISSES = ("first", "tail", "last", "evicted", "order", "scored")


def in_two_sessions(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, num_rows: int, **job: Any) -> Result:
    """The rows, of which the first session commits `num_rows` outputs or a few less before it dies."""
    settings = {"sampling": {"temperature": 1}, "engine": {"max_num_seqs": 1}, **job}
    job_file = run_tiny.write(ROWS, model=uniform_model, **settings)
    stop_after(monkeypatch, num_rows)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    return run_tiny.run_file(job_file)


@pytest.mark.parametrize("job", [{}, {"sampling": {"temperature": 1, "n": 3}}], ids=["one-sample", "three-samples"])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_every_prompt_token_is_accounted_for_once(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, num_rows: int, job: dict[str, Any]
) -> None:
    result = in_two_sessions(run_tiny, monkeypatch, num_rows, **job)
    report, table = result.report, result.table
    is_first = pc.equal(table["sample_index"], 0)
    assert report["num_prompt_tokens"] == pc.sum(table.filter(is_first)["prompt_tokens"]).as_py()
    assert report["num_output_tokens"] == pc.sum(table["completion_tokens"]).as_py()
    found = report["num_hit_tokens"] + report["num_copied_tokens"]
    assert found == pc.sum(table.filter(is_first)["cached_tokens"]).as_py()
    assert report["num_prompt_tokens"] == found + sum(report[f"num_miss_{cause}"] for cause in MISSES)
    groups = pq.read_table(result.folder / "stats/groups.parquet")
    assert pc.sum(groups["num_prompt_tokens"]).as_py() == report["num_prompt_tokens"]


def test_each_session_is_measured_against_its_own_rows(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session finds nothing of the first in its cache, and its limit knows that."""
    whole = run_tiny(ROWS, model=uniform_model).report
    report = in_two_sessions(run_tiny, monkeypatch, 4).report
    assert 0 < report["hit_ceiling"] < whole["hit_ceiling"]
    assert report["num_unique_tokens"] > whole["num_unique_tokens"]
    assert report["hit_efficiency"] == 1.0
    assert report["num_resumed_rows"] == 5  # the bad one too


def test_steps_and_seconds_of_all_sessions_count(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    result = in_two_sessions(run_tiny, monkeypatch, 4)
    last = pq.read_table(result.folder / "stats/steps.parquet")
    assert result.report["num_steps"] > last.num_rows
    assert result.report["seconds"]["total"] > result.report["seconds"]["run"] > pc.sum(last["seconds"]).as_py()


def test_steps_are_noted_with_every_commit(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with one that a row's end brings about; the first session dies as by SIGKILL, with no commit at its end."""
    settings = {"temperature": 1, "max_tokens": 8, "ignore_eos": True}
    job_file = run_tiny.write(ROWS[:8], model=uniform_model, sampling=settings, engine={"max_num_seqs": 1})
    stop_after(monkeypatch, 5)
    monkeypatch.setattr(run_room, "ResultWriter", partial(ResultWriter, rows_per_chunk=1))
    monkeypatch.setattr(Results, "committed_at_end", lambda _: nullcontext())
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    report = run_tiny.run_file(job_file).report
    assert (report["num_resumed_rows"], report["num_output_tokens"], report["num_steps"]) == (5, 8 * 8, 8 * 8)


def test_what_rows_could_find_adds_up_to_the_plans_limits(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows committed by the first session: the second has no plan of its own."""
    whole = run_tiny(ROWS, model=uniform_model).report
    report = in_two_sessions(run_tiny, monkeypatch, 8).report
    for name in ("hit_ceiling", "num_unique_tokens", "num_prompt_tokens"):
        assert report[name] == whole[name]
