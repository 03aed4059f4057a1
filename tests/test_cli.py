"""The command line: exit codes, what goes where, and that help and refusals load nothing heavy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import batchgen
from batchgen.cli import main
from batchgen.errors import CapacityError, InputError, ModelError, OutputError
from batchgen.io.output.folder import OutputFolder
from batchgen.job.interrupt import Interrupt, Interrupted
from batchgen.job.run import write_report
from tests.stats.harness import run_script

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "pyarrow", "pydantic", "numpy", "ruamel.yaml")
GOOD = "model: {path: some/model}\ninput: {path: in.jsonl, prompt: q}\noutput: {path: out}\n"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass
class Report:
    """What `run_job` returns, as far as the command line needs it."""

    exit_code: int = 0

    def table(self) -> str:
        return "rows 3"

    def summary(self) -> str:
        return "ok=3 failed=0"


class FakeRun:
    """Stands in for the run room: notes its calls, and returns or raises what it is told."""

    def __init__(self) -> None:
        self.outcome: Report | BaseException = Report()
        self.calls: list[tuple[Any, bool]] = []

    def __call__(self, job: Any, *, quiet: bool, interrupt: Interrupt, only_failed: bool) -> Report:
        self.calls.append((job, quiet))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def run_job(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    room = ModuleType("batchgen.job.run")
    room.run_job = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchgen.job.run", room)
    return fake


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.mark.parametrize("exit_code", [0, 3])
def test_finished_run_exits_with_the_reports_code(run_job: FakeRun, job: str, exit_code: int) -> None:
    run_job.outcome = Report(exit_code)
    result = invoke("run", job)
    assert result.exit_code == exit_code
    assert result.stdout == "rows 3\nok=3 failed=0\n"


def test_options_reach_the_run(run_job: FakeRun, job: str) -> None:
    assert invoke("run", job, "--set", "sampling.seed=0", "--set", "input.limit=2", "--quiet").exit_code == 0
    [(loaded, quiet)] = run_job.calls
    assert (loaded.spec.sampling.seed, loaded.spec.input.limit, quiet) == (0, 2, True)


@pytest.mark.parametrize("error", [InputError("in.jsonl: no such file"), ModelError("gptj is not supported")])
def test_mistake_of_the_user_exits_with_2_and_no_traceback(run_job: FakeRun, job: str, error: Exception) -> None:
    run_job.outcome = error
    result = invoke("run", job)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{error}\n")


def test_interrupt_exits_with_130(run_job: FakeRun, job: str) -> None:
    run_job.outcome = KeyboardInterrupt()
    assert invoke("run", job).exit_code == 130


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_exits_with_its_code_and_says_how_to_go_on(run_job: FakeRun, job: str, signum: int, code: int) -> None:
    run_job.outcome = Interrupted(signum)
    result = invoke("run", job)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "run the same command again to continue" in result.stderr


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), BrokenPipeError(32, "Broken pipe")])
def test_bug_exits_with_1_and_a_traceback(run_job: FakeRun, job: str, error: Exception) -> None:
    """A broken pipe is one too: those of stdout and stderr are dropped where they are written."""
    run_job.outcome = error
    result = invoke("run", job)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-2] == f"{type(error).__name__}: {error}"
    assert "this is a bug in batchgen" in lines[-1]


def test_wrong_job_file_is_refused_before_the_run_room(run_job: FakeRun, job: str) -> None:
    result = invoke("run", job, "--set", "sampling.sead=1")
    assert result.exit_code == 2
    assert result.stderr == "--set sampling.sead=1: sampling.sead: unknown key; did you mean seed?\n"
    assert run_job.calls == []


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Report(0), 0),
        (Report(3), 3),
        (CapacityError("no memory left"), 2),
        (OutputError("out: disk full"), 2),
        (Interrupted(signal.SIGINT), 130),
        (KeyboardInterrupt(), 130),
        (Interrupted(signal.SIGTERM), 143),
        (AssertionError("a block is lost"), 1),
    ],
)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_exit_codes(run_job: FakeRun, job: str, outcome: Report | BaseException, code: int, log_format: str) -> None:
    run_job.outcome = outcome
    assert invoke("run", job, "--log-format", log_format, "--quiet").exit_code == code


def test_missing_job_file_is_refused(tmp_path: Path) -> None:
    result = invoke("run", str(tmp_path / "nope.yaml"))
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path}/nope.yaml: no such job file\n")


@pytest.mark.parametrize("arguments", [["run"], ["walk"], ["run", "a.yaml", "--nope"], ["run", "a.yaml", "--set"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_log_goes_to_stderr_in_words(run_job: FakeRun, job: str) -> None:
    result = invoke("run", job, "--set", r"sampling.stop='\n'")
    assert result.exit_code == 0
    assert result.stderr.startswith(r"batchgen: --set sampling.stop='\n': sampling.stop[0]: ")
    assert "backslash" not in result.stdout


def test_every_command_has_help_with_an_example() -> None:
    assert "Example: batchgen " in (main.help or "")
    for name, command in main.commands.items():
        assert f"Example: batchgen {name}" in (command.help or "")


def test_version_is_the_packages() -> None:
    assert invoke("--version").stdout == f"batchgen, version {batchgen.__version__}\n"


def test_schema_is_for_editors() -> None:
    schema = json.loads(invoke("schema").stdout)
    assert set(schema["required"]) == {"model", "input", "output"}
    stop = schema["$defs"]["SamplingSpec"]["properties"]["stop"]
    assert {branch["type"] for branch in stop["anyOf"]} == {"string", "array", "null"}


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plan", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = python(
        "-c",
        f"import sys; from batchgen.cli import main; main({arguments}, standalone_mode=False);"
        f"print([name for name in {HEAVY} if name in sys.modules])",
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_import_of_the_package_imports_nothing_heavy() -> None:
    done = python("-c", f"import sys, batchgen; print([name for name in {HEAVY} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", ["JobSpec", "SamplingParams", "load_job"])
def test_public_name_is_found_when_asked_for(name: str) -> None:
    assert name in batchgen.__all__
    assert getattr(batchgen, name).__name__ == name


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        batchgen.nope  # noqa: B018


def test_typos_and_doubled_keys_are_refused_in_a_moment(tmp_path: Path) -> None:
    """The model path is a named pipe: opening it would hang the process."""
    os.mkfifo(tmp_path / "model.gguf")
    (tmp_path / "job.yaml").write_text(
        "model: {path: model.gguf}\ninput: {path: in.jsonl, prompt: q}\noutput: {path: out}\n"
        "sampling:\n  max_new_tokens: 64\n  temprature: 0.2\n  top_p: 0.9\n  top_p: 0.5\n"
    )
    start = time.monotonic()
    done = python("-m", "batchgen", "run", "job.yaml", folder=tmp_path)
    assert time.monotonic() - start < 5
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "job.yaml:5: sampling.max_new_tokens: unknown key; did you mean max_tokens?",
        "job.yaml:6: sampling.temprature: unknown key; did you mean temperature?",
        "job.yaml:8: sampling.top_p: given twice, on lines 7 and 8; keep one",
    ]
    assert not (tmp_path / "out").exists()


REPORTING_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from batchgen.cli import main
main()
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The output folder of a finished run, without its completions."""
    folder = OutputFolder(tmp_path / "out")
    folder.claim()
    folder.begin("{}")
    write_report(folder, run_script(["aaaab", "aaaac"]).artifact())
    folder.mark_success()
    return tmp_path / "out"


def test_report_prints_the_table_and_makes_the_page_anew(finished: Path) -> None:
    page = finished / "report.html"
    before = page.read_text()
    page.unlink()
    done = python("-c", REPORTING_WITHOUT_TORCH, "report", str(finished))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rows             2: 2 ok, 0 failed\n")
    assert done.stdout.endswith("\nok=2 failed=0\n")
    assert page.read_text() == before


def test_report_of_several_runs_compares_them_and_writes_nothing(finished: Path) -> None:
    other = finished.with_name("other")
    shutil.copytree(finished, other)
    (other / "report.html").unlink()
    result = invoke("report", str(finished), str(other))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].split() == [str(finished), str(other)]
    assert not (other / "report.html").exists()


def test_report_of_a_folder_that_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    result = invoke("report", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{tmp_path}: no finished run")


class FakePlan:
    """Stands in for `plan_job` and for what it returns."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, float | None, bool]] = []

    def __call__(self, job: Any, *, tokens_per_second: float | None, quiet: bool) -> FakePlan:
        self.calls.append((job, tokens_per_second, quiet))
        return self

    def table(self) -> str:
        return "rows  3"

    def to_json(self) -> str:
        return '{"num_rows": 3}'


@pytest.fixture
def plan_job(monkeypatch: pytest.MonkeyPatch) -> FakePlan:
    fake = FakePlan()
    room = ModuleType("batchgen.job.plan_job")
    room.plan_job = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchgen.job.plan_job", room)
    return fake


def test_plan_prints_a_table_or_json(plan_job: FakePlan, job: str) -> None:
    assert invoke("plan", job).stdout == "rows  3\n"
    assert invoke("plan", job, "--json").stdout == '{"num_rows": 3}\n'


def test_options_reach_the_plan(plan_job: FakePlan, job: str) -> None:
    assert invoke("plan", job, "--set", "input.limit=2", "--tokens-per-second", "12.5", "--quiet").exit_code == 0
    [(loaded, tokens_per_second, quiet)] = plan_job.calls
    assert (loaded.spec.input.limit, tokens_per_second, quiet) == (2, 12.5, True)


def test_rate_of_nothing_is_wrong_usage(plan_job: FakePlan, job: str) -> None:
    assert invoke("plan", job, "--tokens-per-second", "0").exit_code == 2
    assert plan_job.calls == []
