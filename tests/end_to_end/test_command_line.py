"""`batchgen run` as a user meets it: exit codes, the last lines, refusals in words and without a traceback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result as CliResult

from tests.end_to_end.harness import ADDED, TinyRunner, cli_run, prompts, read_report
from tests.tiny_models import context_model

ROOT = Path(__file__).resolve().parents[2]
GOOD = prompts("note a", "note b", "note c")
LONG = {"prompt": "x" * 100}
TYPOS = """\
sampling:
  max_new_tokens: 64      # not our name
  temprature: 0.2
  top_p: 0.9
  top_p: 0.5
"""


def last_counts(result: CliResult) -> tuple[int, int]:
    """`ok=` and `failed=` of the last line."""
    match = re.fullmatch(r"ok=(\d+) failed=(\d+)", result.stdout.splitlines()[-1])
    assert match, result.stdout
    return int(match[1]), int(match[2])


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def assert_refused(result: CliResult, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("rows", "exit_code", "counts"),
    [
        (GOOD, 0, (3, 0)),
        ([*GOOD[:2], LONG], 3, (2, 1)),
        ([LONG] * 3, 3, (0, 3)),
        (pa.table({"prompt": pa.array([], pa.string())}), 0, (0, 0)),
        (b"", 0, (0, 0)),
    ],
    ids=["good", "one-over-long", "all-over-long", "empty-parquet", "empty-jsonl"],
)
def test_exit_code_and_counts_match_the_file(
    run_tiny: TinyRunner, rows: Any, exit_code: int, counts: tuple[int, int]
) -> None:
    job_file = run_tiny.write(rows, engine={"max_model_len": 64})
    result = cli_run(job_file, "--quiet")
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    assert last_counts(result) == counts
    folder = job_file.with_suffix("")
    table = pq.read_table(folder / "completions")
    reasons = table["finish_reason"].to_pylist()
    assert (len(reasons) - reasons.count("error"), reasons.count("error")) == counts
    assert [(field.name, field.type) for field in table.schema][-len(ADDED) :] == ADDED
    report = read_report(folder)
    assert (report["num_ok"], report["num_failed"]) == counts
    assert (folder / "_SUCCESS").exists()


def test_run_without_rows_has_no_rates(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(b"")
    result = cli_run(job_file)
    report = read_report(job_file.with_suffix(""))
    rates = ("hit_rate", "internal_fragmentation", "peak_internal_fragmentation", "output_tokens_per_second")
    assert [report[name] for name in rates] == [None] * len(rates)
    assert re.search(r"^rows +0\b", result.stdout, re.MULTILINE)
    assert "nan" not in result.stdout.lower()


def test_most_common_error_is_shown(run_tiny: TinyRunner) -> None:
    rows = [LONG, {"prompt": "y" * 90}, {"prompt": None}, *GOOD]
    result = cli_run(run_tiny.write(rows, engine={"max_model_len": 64}))
    [line] = [line for line in result.stdout.splitlines() if line.startswith("most common error")]
    assert "the prompt has" in line
    assert "(2 rows)" in line


@pytest.mark.slow
def test_real_process_ends_like_the_call(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write([*GOOD, {"prompt": None}])
    done = process("run", str(job_file))
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[-1] == "ok=3 failed=1"
    assert "Traceback" not in done.stderr
    assert pq.read_table(job_file.with_suffix("") / "completions")["completion"].to_pylist() == ["A", "B", "C", None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TYPOS, ["max_new_tokens", "max_tokens?", "temprature", "temperature?", "top_p", "lines 7 and 8"]),
        ("sampling:\n\ttop_p: 0.9\n", ["job.yaml:5", "tab"]),
        ("sampling: !!python/object:os.system {}\n", ["job.yaml:4", "!!python/object", "not allowed"]),
    ],
    ids=["typos", "tab", "tag"],
)
def test_wrong_job_file_is_refused_before_the_model_is_opened(tmp_path: Path, text: str, words: list[str]) -> None:
    """The model path is a pipe that nobody writes to: opening it would hang."""
    os.mkfifo(tmp_path / "model.gguf")
    head = "model: {path: model.gguf}\ninput: {path: in.jsonl, prompt: prompt}\noutput: {path: out}\n"
    (tmp_path / "job.yaml").write_text(head + text)
    done = process("run", "job.yaml", folder=tmp_path, timeout=5)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "word"), [("", "empty"), ("# nothing\n", "empty"), ("- model\n- input\n", "a list")])
def test_job_file_without_sections_is_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert_refused(cli_run(tmp_path / "job.yaml"), "job.yaml", word)


@pytest.mark.parametrize("path", ["in.jsonl", "./x/../in.jsonl", "link.jsonl"], ids=["same", "dots", "link"])
def test_output_over_the_input_is_refused(run_tiny: TinyRunner, path: str) -> None:
    folder = run_tiny.folder
    (folder / "x").mkdir()
    (folder / "in.jsonl").write_text('{"prompt": "note a"}\n')
    (folder / "link.jsonl").symlink_to(folder / "in.jsonl")
    before = checksum(folder / "in.jsonl")
    job_file = run_tiny.write(folder / "in.jsonl", output={"path": path, "overwrite": True})
    assert_refused(cli_run(job_file), "in.jsonl")
    assert checksum(folder / "in.jsonl") == before


def test_unset_variable_is_named_and_makes_no_folder(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(GOOD, output={"path": "${NOPE_X}/o"})
    assert_refused(cli_run(job_file), "NOPE_X", "output.path")
    assert not [path for path in run_tiny.folder.rglob("*") if "$" in path.name or "NOPE_X" in path.name]


def test_variable_that_is_set_is_used(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHT", "2024-01-31")
    assert cli_run(run_tiny.write(GOOD, output={"path": "${NIGHT}/a/new/folder"})).exit_code == 0
    assert (run_tiny.folder / "2024-01-31/a/new/folder/_SUCCESS").exists()


def test_output_below_a_file_is_refused(run_tiny: TinyRunner) -> None:
    (run_tiny.folder / "file").write_text("mine")
    assert_refused(cli_run(run_tiny.write(GOOD, output={"path": "file/out"})), "file", "must be a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_output_that_cannot_be_written_is_refused(run_tiny: TinyRunner) -> None:
    folder = run_tiny.folder / "locked"
    folder.mkdir(mode=0o500)
    assert_refused(cli_run(run_tiny.write(GOOD, output={"path": "locked/out"})), str(folder), "not writable")


def test_model_that_is_not_there_is_refused(run_tiny: TinyRunner) -> None:
    missing = run_tiny.folder / "no-model"
    assert_refused(cli_run(run_tiny.write(GOOD, model=missing)), str(missing), "model.path")


def test_model_that_does_not_fit_is_refused_as_such(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(GOOD, engine={"memory_fraction": 1e-9})
    assert_refused(cli_run(job_file), "model itself does not fit", "GiB", "engine.memory_fraction")


def test_pool_that_does_not_fit_is_another_message(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(GOOD, engine={"num_blocks": 2**31 - 1})
    assert_refused(cli_run(job_file), "engine.num_blocks", "GiB")


@pytest.mark.parametrize("model_type", ["bloom", "nosuchfamily", "t5"])
def test_model_of_another_family_is_refused_by_name(run_tiny: TinyRunner, model_type: str) -> None:
    folder = run_tiny.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert_refused(cli_run(run_tiny.write(GOOD, model=folder)), model_type)


def test_input_that_is_not_there_is_refused(run_tiny: TinyRunner) -> None:
    assert_refused(cli_run(run_tiny.write(run_tiny.folder / "none.jsonl")), "none.jsonl")


def test_column_that_is_not_there_is_refused_with_the_nearest(run_tiny: TinyRunner) -> None:
    rows = pa.table({"prompts": ["note a"]})
    assert_refused(cli_run(run_tiny.write(rows)), "'prompt'", "'prompts'")


def test_set_overrides_the_file_and_is_recorded(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(GOOD, model=context_model)
    result = cli_run(job_file, "--set", "sampling.max_tokens=3", "--set", "input.limit=2")
    assert result.exit_code == 0
    folder = job_file.with_suffix("")
    assert pq.read_table(folder / "completions")["completion_tokens"].to_pylist() == [3, 3]
    assert "sampling.max_tokens: --set" in (folder / "job.yaml").read_text()


def process(*arguments: str, folder: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`python -m batchgen` as a process of its own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    return subprocess.run(
        [sys.executable, "-m", "batchgen", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
