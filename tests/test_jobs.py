"""The shipped job files and their data: each job is valid, starts with its own command and explains its keys."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from batchgen.spec.load import load_job

ROOT = Path(__file__).resolve().parent.parent
JOBS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "jobs").rglob("*.yaml"))]


@pytest.mark.parametrize("name", JOBS)
def test_job_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATE", "2026-11-30")
    assert load_job(ROOT / name).spec.model.path


@pytest.mark.parametrize("name", JOBS)
def test_job_starts_with_its_command(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").splitlines()[0] == f"# batchgen run {name}"


@pytest.mark.parametrize("name", JOBS)
def test_every_key_of_a_job_has_a_comment(name: str) -> None:
    """The comment is on the line of the key, or on the line above it."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"\s*[\w.]+:", line)]
    bare = [
        lines[number] for number in keys if " # " not in lines[number] and not re.match(r"\s*# ", lines[number - 1])
    ]
    assert keys
    assert bare == []


def test_quickstart_is_among_the_jobs() -> None:
    assert "jobs/quickstart.yaml" in JOBS


def test_sample_holds_two_rows_of_each_of_the_27_tasks() -> None:
    table = pq.read_table(ROOT / "jobs" / "data" / "bbh_sample.parquet")
    assert table.column_names == ["id", "task", "system", "prompt", "target"]
    assert Counter(Counter(table["task"].to_pylist()).values()) == {2: 27}
