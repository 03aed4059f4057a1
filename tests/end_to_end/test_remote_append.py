"""Rows that come behind those of a finished run, and failed rows run again, where input and output are in a store."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.io.output.writers import ResultWriter
from batchgen.io.remote import RemotePath
from batchgen.job.run import run_job
from batchgen.spec.load import load_job
from batchgen.stats.artifact import read_report
from tests.end_to_end.harness import TinyRunner, cli_run, json_lines, prompts
from tests.end_to_end.interrupted import Killed, killed
from tests.tiny_models import uniform_model

SAMPLED = {"temperature": 1, "seed": 3}


def write_job(run_tiny: TinyRunner, store: RemotePath, **job: Any) -> Path:
    job = {"model": uniform_model, "sampling": SAMPLED, **job}
    return run_tiny.write([], input={"path": str(store / "in")}, output={"path": str(store / "out")}, **job)


def expected(job_file: Path, store: RemotePath, *overrides: str) -> list[dict[str, Any]]:
    """What the same job answers in a folder of its own."""
    run_job(load_job(job_file, [f"output.path={store / 'fresh'}", *overrides]), quiet=True)
    return answers(store / "fresh")


def answers(folder: RemotePath) -> list[dict[str, Any]]:
    parts = sorted((folder / "completions").iterdir(), key=lambda path: path.name)
    tables = [pq.read_table(pa.BufferReader(path.read_bytes())) for path in parts]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).drop_columns(["cached_tokens"]).to_pylist()
    return rows


def put_table(path: RemotePath, *texts: str) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"prompt": list(texts)}), buffer)
    path.write_bytes(buffer.getvalue())


def test_only_the_rows_of_a_new_file_run(run_tiny: TinyRunner, store: RemotePath) -> None:
    put_table(store / "in" / "a.parquet", "one", "two")
    job_file = write_job(run_tiny, store)
    run_job(load_job(job_file), quiet=True)
    put_table(store / "in" / "b.parquet", "three")
    report = run_job(load_job(job_file), quiet=True)
    assert (report.num_rows, report.num_resumed_rows) == (3, 2)
    assert answers(store / "out") == expected(job_file, store)
    assert not (store / "out" / ".state").exists()


def test_a_new_file_joins_an_unfinished_run(
    run_tiny: TinyRunner, store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_table(store / "in" / "a.parquet", "one", "two")
    job_file = write_job(run_tiny, store)
    with monkeypatch.context() as patch:
        patch.setattr(ResultWriter, "finish", killed)
        with pytest.raises(Killed):
            run_job(load_job(job_file), quiet=True)
    put_table(store / "in" / "b.parquet", "three")
    report = run_job(load_job(job_file), quiet=True)
    assert (report.num_rows, report.num_resumed_rows) == (3, 2)
    assert answers(store / "out") == expected(job_file, store)


def test_lines_that_grew_in_a_store_are_refused_by_name(run_tiny: TinyRunner, store: RemotePath) -> None:
    """Nothing tells cheaply whether an object still begins as it did: new rows go into a new file."""
    path = store / "in" / "a.jsonl"
    path.write_bytes(json_lines(prompts("one")))
    job_file = write_job(run_tiny, store)
    run_job(load_job(job_file), quiet=True)
    before = answers(store / "out")
    path.write_bytes(json_lines(prompts("one", "two")))
    refused = cli_run(job_file)
    assert (refused.exit_code, f"input file 1: was {path}, " in refused.stderr) == (2, True), refused.stderr
    assert answers(store / "out") == before


def test_failed_rows_run_again(run_tiny: TinyRunner, store: RemotePath) -> None:
    put_table(store / "in" / "a.parquet", "one", "b" * 40, "two")  # the second does not fit the pool
    job_file = write_job(run_tiny, store, engine={"num_blocks": 2})
    assert run_job(load_job(job_file), quiet=True).num_failed == 1
    mended = cli_run(job_file, "--only", "failed", "--set", "engine.num_blocks=20")
    assert mended.exit_code == 0, mended.stderr
    report = read_report(store / "out")
    assert (report.num_rows, report.num_resumed_rows, report.num_failed) == (3, 2, 0)
    assert answers(store / "out") == expected(job_file, store, "engine.num_blocks=20")
