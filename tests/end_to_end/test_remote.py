"""Input and output behind URLs: the same answers as on the disk, and nothing committed is lost with the process."""

from __future__ import annotations

import gzip
import io
import signal
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from batchgen.cli import main
from batchgen.io.output.writers import ResultWriter
from batchgen.io.remote import Location, RemotePath, locate
from tests.end_to_end.harness import TinyRunner, cli_run, json_lines, prompts
from tests.end_to_end.interrupted import Killed, die_at_put, killed, start
from tests.object_store import install
from tests.tiny_models import uniform_model


def put_table(path: RemotePath, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=2)
    path.write_bytes(buffer.getvalue())


def output_rows(folder: Location) -> list[dict[str, Any]]:
    parts = [pa.BufferReader(path.read_bytes()) for path in (folder / "completions").iterdir()]
    rows: list[dict[str, Any]] = pa.concat_tables(map(pq.read_table, parts)).to_pylist()
    return rows


def names_in(folder: RemotePath) -> set[str]:
    return {path.path.removeprefix(folder.path + "/") for path in folder.find()}


def test_parquet_in_and_out(run_tiny: TinyRunner, store: RemotePath) -> None:
    put_table(store / "in" / "part-1.parquet", pa.table({"prompt": ["note c"]}))
    put_table(store / "in" / "part-0.parquet", pa.table({"prompt": ["note a", None, "note b"]}))
    (store / "in" / "_SUCCESS").write_bytes(b"")
    job_file = run_tiny.write([], input={"path": str(store / "in")}, output={"path": str(store / "out")})
    done = cli_run(job_file)
    assert done.exit_code == 3
    rows = output_rows(store / "out")
    assert [row["completion"] for row in rows] == ["A", None, "B", "C"]
    assert rows[1]["error"] == "part-0.parquet row 2: column 'prompt': expected text, found null"
    assert names_in(store / "out") == {
        *("completions/part-00000.parquet", "stats/job.parquet", "stats/groups.parquet", "stats/steps.parquet"),
        *("report.json", "report.html", "job.yaml", "_SUCCESS"),
    }


def test_compressed_lines_by_glob(run_tiny: TinyRunner, store: RemotePath) -> None:
    (store / "in" / "b-10.jsonl.gz").write_bytes(gzip.compress(json_lines(prompts("note b"))))
    (store / "in" / "b-9.jsonl").write_bytes(json_lines(prompts("note a")))
    (store / "in" / "c.txt").write_bytes(b"x")
    result = run_tiny([], input={"path": str(store / "in" / "b-*")})
    assert result.completions == ["A", "B"]


def test_jsonl_out(run_tiny: TinyRunner, store: RemotePath) -> None:
    result = run_tiny(prompts("note a"), output={"path": str(store / "out"), "format": "jsonl"})
    assert result.exit_code == 0
    assert b'"completion":"A"' in (store / "out" / "completions" / "part-00000.jsonl").read_bytes()


def test_second_run_says_that_it_is_complete(run_tiny: TinyRunner, store: RemotePath) -> None:
    (store / "in.jsonl").write_bytes(json_lines(prompts("note a")))
    job_file = run_tiny.write([], input={"path": str(store / "in.jsonl")}, output={"path": str(store / "out")})
    assert cli_run(job_file).exit_code == 0
    assert "complete already" in cli_run(job_file).stderr
    (store / "in.jsonl").write_bytes(json_lines(prompts("note b")))
    refused = cli_run(job_file)
    assert refused.exit_code == 2
    assert "what differs:\n  input file 1: was" in refused.stderr
    assert cli_run(job_file, "--set", "output.overwrite=true").exit_code == 0
    assert [row["completion"] for row in output_rows(store / "out")] == ["B"]


def test_status_report_and_export(run_tiny: TinyRunner, store: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    out = store / "out"
    job_file = run_tiny.write(prompts("note a", "note b", "note c"), output={"path": str(out)})
    with monkeypatch.context() as patch:
        patch.setattr(ResultWriter, "finish", killed)
        with pytest.raises(Killed):
            run_tiny.run_file(job_file)
    status = CliRunner().invoke(main, ["status", str(out)])
    assert "committed=3 ok=3 failed=0" in status.output
    to = run_tiny.folder / "partial"
    assert CliRunner().invoke(main, ["export", str(out), "--to", str(to)]).output == "rows=3\n"
    assert pq.read_table(to)["completion"].to_pylist() == ["A", "B", "C"]
    options = ["export", str(out), "--to", str(run_tiny.folder / "whole"), "--job", str(job_file)]
    assert CliRunner().invoke(main, options).output == "rows=3\n"
    assert pq.read_table(run_tiny.folder / "whole")["prompt"].to_pylist() == ["note a", "note b", "note c"]
    assert run_tiny.run_file(job_file).exit_code == 0
    assert CliRunner().invoke(main, ["status", str(out)]).output == "finished\nok=3 failed=0\n"
    assert "ok=3 failed=0" in CliRunner().invoke(main, ["report", str(out)]).output


def test_killed_before_every_put_it_ends_as_an_unbroken_run(
    run_tiny: TinyRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session dies one PUT further on than the one before, until one reaches the end."""
    monkeypatch.setattr("batchgen.job.run.ResultWriter", lambda folder: ResultWriter(folder, rows_per_chunk=2))
    sampling = {"temperature": 1, "seed": 1}
    job_file = run_tiny.write(prompts(*(f"row {n}" for n in range(6))), model=uniform_model, sampling=sampling)
    expected = run_tiny.run_file(job_file)
    keys: list[str] = []
    left = 0

    def count_down(key: str) -> None:
        nonlocal left
        keys.append(key)
        left -= 1
        if left < 0:
            raise Killed

    install(tmp_path / "store", count_down)
    num_sessions = 0
    while True:
        left, num_sessions = num_sessions, num_sessions + 1
        try:
            result = run_tiny.run_file(job_file, ["output.path=s3://bucket/out"])
            break
        except Killed:
            continue
    assert result.exit_code == 0
    install(tmp_path / "store")
    rows = output_rows(locate("s3://bucket/out"))
    assert [row["completion"] for row in rows] == expected.completions
    # a chunk is committed by one PUT, and never again: the rows of a session that died later are not run again
    assert num_sessions > 8
    assert len({key for key in keys if "/chunk-" in key}) == 3
    assert not (locate("s3://bucket/out") / ".state").exists()


@pytest.mark.slow
def test_lost_node_loses_nothing_committed(run_tiny: TinyRunner, tmp_path: Path) -> None:
    """A process killed at its second commit; another one, which has only the store, goes on."""
    job_file = run_tiny.write(prompts(*"abcdef"), output={"path": "s3://bucket/out"})
    session = start(job_file, rows_per_chunk=2, prepare=partial(die_at_put, tmp_path / "store", "chunk-000001.parquet"))
    assert session.wait() == -signal.SIGKILL, session.stderr
    install(tmp_path / "store")
    assert "committed=2 ok=2" in CliRunner().invoke(main, ["status", "s3://bucket/out"]).output
    result = cli_run(job_file)
    assert result.exit_code == 0, result.stderr
    assert "2 rows are done already" in result.stderr
    assert [row["completion"] for row in output_rows(locate("s3://bucket/out"))] == list("ABCDEF")


def test_output_that_holds_the_input_is_refused(run_tiny: TinyRunner, store: RemotePath) -> None:
    path = store / "out" / "in.jsonl"
    path.write_bytes(json_lines(prompts("a")))
    result = run_tiny([], input={"path": str(path)}, output={"path": str(store / "out")})
    assert "would mix with the input" in result.error
    result = run_tiny([], input={"path": str(store / "*" / "in.jsonl")}, output={"path": str(store / "out")})
    assert "which the job reads" in result.error


def test_nothing_is_left_in_the_temporary_folder(
    run_tiny: TinyRunner, store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = run_tiny.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert run_tiny(prompts("a"), output={"path": str(store / "out")}).exit_code == 0
    assert [*temporary.iterdir()] == []


def test_store_that_refuses_is_named_before_anything_runs(run_tiny: TinyRunner) -> None:
    class ReadOnly(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec carries no types
        protocol = "readonly"

        def info(self, path: str, **_: object) -> object:
            raise FileNotFoundError(path)

        def pipe_file(self, path: str, *_: object, **__: object) -> None:
            raise PermissionError("Access Denied")

    fsspec.register_implementation("readonly", ReadOnly, clobber=True)
    result = run_tiny(prompts("a"), output={"path": "readonly://bucket/out"})
    assert "readonly://bucket/out: cannot be written: Access Denied" in result.error


def test_damaged_remote_input_is_named(run_tiny: TinyRunner, store: RemotePath) -> None:
    (store / "x.jsonl.gz").write_bytes(gzip.compress(json_lines(prompts("a", "b")))[:-4])
    assert "x.jsonl.gz: the gzip data is cut off" in run_tiny([], input={"path": str(store / "x.jsonl.gz")}).error
    (store / "x.parquet").write_bytes(b"PAR1")
    assert "x.parquet: the Parquet file is cut off" in run_tiny([], input={"path": str(store / "x.parquet")}).error
    assert "no such file or folder" in run_tiny([], input={"path": str(store / "y.parquet")}).error
    assert "no file matches" in run_tiny([], input={"path": str(store / "y*.parquet")}).error
