"""Rows that come behind a run's old ones are all that runs; failed rows run again where that is asked for."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.io.input.jsonl import JsonlInput
from batchgen.job import run as run_room
from batchgen.job.run import run_job
from batchgen.spec.load import load_job
from tests.end_to_end.harness import Result, TinyRunner, answers, cli_run, json_lines, prompts, snapshot
from tests.end_to_end.interrupted import stopped
from tests.tiny_models import uniform_model

SAMPLED = {"temperature": 1, "seed": 3}


def input_of(job_file: Path) -> Path:
    return job_file.with_name(f"{job_file.stem}-in.jsonl")


def append(path: Path, *texts: str) -> None:
    path.write_bytes(path.read_bytes() + json_lines(prompts(*texts)))


def fresh(run_tiny: TinyRunner, job_file: Path) -> Result:
    """The same job in a folder of its own."""
    seed = load_job(job_file).spec.sampling.seed
    assert seed is not None
    return run_tiny.run_file(job_file, [f"output.path={run_tiny.folder / 'fresh'}"])


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_only_the_new_rows_of_a_finished_job_run(run_tiny: TinyRunner, format: str) -> None:
    output = {"format": format, "prefix": "gen_"}
    job_file = run_tiny.write(prompts("a", "b"), model=uniform_model, sampling={**SAMPLED, "n": 2}, output=output)
    run_tiny.run_file(job_file)
    append(input_of(job_file), "c")
    result = run_tiny.run_file(job_file)
    assert result.report["num_resumed_rows"] == 2
    assert (result.report["num_rows"], result.report["num_output_tokens"]) == (3, 2 * 8)
    parts = [
        folder / f"completions/part-00000.{format}" for folder in (result.folder, fresh(run_tiny, job_file).folder)
    ]
    assert len({content_but_cached(part) for part in parts}) == 1
    assert not (result.folder / ".state").exists()


def content_but_cached(part: Path) -> str:
    if part.suffix == ".parquet":
        return str(pq.read_table(part).drop_columns(["gen_cached_tokens"]).to_pylist())
    return re.sub(r'"gen_cached_tokens":\d+', "", part.read_text())


def test_only_the_new_rows_of_an_unfinished_job_run(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch, 3, sampling=SAMPLED)
    append(input_of(job_file), "new")
    result = run_tiny.run_file(job_file)
    assert (result.report["num_resumed_rows"], result.report["num_rows"]) == (3, 9)
    assert answers(result) == answers(fresh(run_tiny, job_file))


def test_a_new_file_that_sorts_last_is_accepted_and_one_in_between_is_not(run_tiny: TinyRunner) -> None:
    folder = run_tiny.folder / "in"
    folder.mkdir()
    for name in ("a", "c"):
        pq.write_table(pa.table({"prompt": [name]}), folder / f"{name}.parquet")
    job_file = run_tiny.write(folder, model=uniform_model, sampling=SAMPLED)
    run_tiny.run_file(job_file)
    pq.write_table(pa.table({"prompt": ["d"]}), folder / "d.parquet")
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 2
    pq.write_table(pa.table({"prompt": ["b"]}), folder / "b.parquet")
    before = snapshot(job_file.with_suffix(""))
    assert "input file 2: was " in run_tiny.run_file(job_file).error
    assert snapshot(job_file.with_suffix("")) == before


def changed_in_the_middle(content: bytes) -> bytes:
    return content.replace(b"a", b"A", 1) + b'{"prompt": "new"}\n'


def last_line_goes_on(content: bytes) -> bytes:
    return content.rstrip(b"\n") + b" \n"


@pytest.mark.parametrize("change", [changed_in_the_middle, last_line_goes_on])
def test_a_file_that_changed_otherwise_is_refused_by_name(run_tiny: TinyRunner, change: Any) -> None:
    job_file = run_tiny.write(json_lines(prompts("a", "b")).rstrip(b"\n"))
    run_tiny.run_file(job_file)
    path = input_of(job_file)
    path.write_bytes(change(path.read_bytes()))
    result = run_tiny.run_file(job_file)
    assert (result.exit_code, f"input file 1: was {path}" in result.error) == (2, True)


def test_compressed_and_parquet_files_do_not_grow(run_tiny: TinyRunner) -> None:
    member = gzip.compress(json_lines(prompts("a")))
    path = run_tiny.folder / "in.jsonl.gz"
    path.write_bytes(member)
    job_file = run_tiny.write(path)
    run_tiny.run_file(job_file)
    path.write_bytes(member + member)
    assert f"input file 1: was {path}" in run_tiny.run_file(job_file).error


def test_an_input_file_that_grows_while_it_is_read_is_said(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = run_tiny.write(prompts("a", "b"))
    read = JsonlInput.read_batches

    def grown(self: JsonlInput) -> Any:
        append(input_of(job_file), "c")
        return read(self)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlInput, "read_batches", grown)
        assert "in.jsonl: the file was changed while the job ran" in run_tiny.run_file(job_file).error
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 2


def failing_job(run_tiny: TinyRunner) -> Path:
    """Its second row does not fit the pool."""
    return run_tiny.write(prompts("a", "b" * 40, "c"), model=uniform_model, sampling=SAMPLED, engine={"num_blocks": 2})


def test_failed_rows_of_a_finished_job_run_again(run_tiny: TinyRunner) -> None:
    job_file = failing_job(run_tiny)
    assert run_tiny.run_file(job_file).exit_code == 3
    assert cli_run(job_file).exit_code == 3  # complete already, and still with a failed row
    mended = cli_run(job_file, "--only", "failed", "--set", "engine.num_blocks=20")
    assert mended.exit_code == 0, mended.stderr
    result = Result(0, "", job_file, job_file.with_suffix(""))
    assert (result.report["num_resumed_rows"], result.report["num_failed"]) == (2, 0)
    uninterrupted = run_tiny.run_file(job_file, ["output.path=whole", "engine.num_blocks=20"])
    assert answers(result) == answers(uninterrupted)
    before = snapshot(result.folder)
    assert cli_run(job_file, "--only", "failed").exit_code == 0  # nothing has failed
    assert snapshot(result.folder) == before


def test_failed_rows_of_an_unfinished_job_run_again(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = failing_job(run_tiny)

    def refuse(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_room, "write_report", refuse)
        with pytest.raises(KeyboardInterrupt):
            run_tiny.run_file(job_file)
    report = run_job(load_job(job_file, ["engine.num_blocks=20"]), quiet=True, only_failed=True)
    assert (report.num_resumed_rows, report.num_ok, report.num_failed) == (2, 3, 0)


def test_only_failed_needs_a_run(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(prompts("a"))
    refused = cli_run(job_file, "--only", "failed")
    assert (refused.exit_code, refused.stderr.count("holds no run whose failed rows")) == (2, 1)


def test_a_refused_replacement_leaves_the_unfinished_run(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    (job_file.with_suffix("") / ".state/tokens.bin").unlink()  # what every session makes anew
    before = snapshot(job_file.with_suffix(""))
    with monkeypatch.context() as patch:
        patch.setattr(run_room, "prepare_generation", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_tiny.run_file(job_file, ["output.overwrite=true", "sampling.temperature=0.5"])
    assert snapshot(job_file.with_suffix("")) == before
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 3
