"""A run that was stopped continues where it stopped; a changed job is refused, and what changed is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchgen.io.output.writers import ResultWriter
from batchgen.job import run as run_room
from batchgen.job.interrupt import Interrupt, Interrupted
from batchgen.spec.load import load_job
from tests.end_to_end.harness import TinyRunner, answers, cli_run, prompts, snapshot
from tests.end_to_end.interrupted import (
    stopped,
)
from tests.tiny_models import uniform_model


def test_committed_rows_are_not_generated_again(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch, 3)
    result = run_tiny.run_file(job_file)
    assert result.report["num_resumed_rows"] == 3
    assert result.report["num_output_tokens"] == 8 * 8  # of both sessions, each row's once
    assert re.search(r"8 ok, 0 failed; 3 of them before", cli_run(job_file).stdout)


def test_every_new_run_draws_its_own_seed(run_tiny: TinyRunner) -> None:
    seeds = {run_tiny(prompts("note a")).resolved["job"]["sampling"]["seed"] for _ in range(3)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_drawn_seed_and_clock_outlive_the_session(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    before = json.loads((job_file.with_suffix("") / ".state/run.json").read_text())
    result = run_tiny.run_file(job_file)
    assert result.resolved["job"]["sampling"]["seed"] == before["seed"]
    assert result.resolved["clock"] == before["clock"]
    same = run_tiny.run_file(job_file, [f"output.path={run_tiny.folder / 'same'}", f"sampling.seed={before['seed']}"])
    assert answers(result) == answers(same)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sampling.temperature=0.5", ["sampling.temperature: was 1.0, is now 0.5"]),
        ("sampling.seed=5", ["sampling.seed: was ", "is now 5"]),
        ("input.limit=4", ["input.limit: was null, is now 4"]),
        ("output.prefix=gen_", ['output.prefix: was "", is now "gen_"']),
        ("engine.max_model_len=64", ["engine.max_model_len: was 512, is now 64"]),
    ],
)
def test_changed_setting_is_refused_by_name(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, override: str, words: list[str]
) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    before = snapshot(job_file.with_suffix(""))
    result = run_tiny.run_file(job_file, [override])
    assert result.exit_code == 2
    assert [word for word in [*words, "unfinished", "output.overwrite"] if word not in result.error] == []
    assert snapshot(job_file.with_suffix("")) == before


def test_changed_template_is_refused_with_both(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch, input={"template": "{{ prompt }}"})
    error = run_tiny.run_file(job_file, ["input.template='{{ prompt }}!'"]).error
    assert 'input.template: was "{{ prompt }}", is now "{{ prompt }}!"' in error


def test_changed_input_is_refused_and_a_touched_one_is_not(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    path = job_file.with_name(f"{job_file.stem}-in.jsonl")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"row 7", b"ROW 7"))
    error = run_tiny.run_file(job_file).error
    assert re.search(rf"input file 1: was {path}, .* blake2b \w+, is now {path}, ", error)
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 3


def test_changed_chat_template_of_the_model_is_refused(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = run_tiny(prompts("a"), model=uniform_model)
    model = tmp_path / "own-model"
    shutil.copytree(first.resolved["job"]["model"]["path"], model)
    job_file = stopped(run_tiny, monkeypatch, model=model)
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}?")
    assert "model chat template: was " in run_tiny.run_file(job_file).error


def test_changed_file_of_a_chat_template_is_refused(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = tmp_path / "own.jinja"
    long_comment = f"{{# {'x' * 2000} #}}"
    template.write_text(f"{long_comment}{{{{ messages[0].content }}}}")
    job_file = stopped(run_tiny, monkeypatch, input={"chat_template": str(template)})
    template.write_text(f"{long_comment}{{{{ messages[0].content }}}}?")
    error = run_tiny.run_file(job_file).error
    assert re.search(r'input\.chat_template: was "\{# x{50,100}… \(2\d+ characters, blake2b \w{32}\), is now "', error)
    template.write_text(f"{long_comment}{{{{ messages[0].content }}}}")
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 3


def test_changed_arguments_of_the_chat_template_are_refused(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["input.tools=[{a: 1}]", "input.chat_template_kwargs.mode=x", "input.system_template=Be brief."]
    error = run_tiny.run_file(stopped(run_tiny, monkeypatch), overrides).error
    assert 'input.tools: was null, is now [{"a": 1}]' in error
    assert 'input.chat_template_kwargs: was null, is now {"mode": "x"}' in error
    assert 'input.system_template: was null, is now "Be brief."' in error


def test_engine_settings_may_change(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    result = run_tiny.run_file(job_file, ["engine.block_size=8", "engine.num_blocks=200", "engine.max_num_seqs=3"])
    assert result.report["num_resumed_rows"] == 3


@pytest.mark.parametrize("changed", [{}, {"sampling.temperature": 0}], ids=["same", "other"])
def test_overwrite_resumes_the_same_job_and_replaces_another(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, changed: Mapping[str, Any]
) -> None:
    job_file = stopped(run_tiny, monkeypatch)
    overrides = ["output.overwrite=true", *(f"{key}={value}" for key, value in changed.items())]
    result = run_tiny.run_file(job_file, overrides)
    assert result.report["num_resumed_rows"] == (0 if changed else 3)
    assert len(result.rows) == 8


def test_complete_run_says_so_and_touches_nothing(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(prompts("note a"), sampling={"temperature": 1})
    first = cli_run(job_file)
    before = snapshot(job_file.with_suffix(""))
    again = cli_run(job_file)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert "complete already" in again.stderr
    assert snapshot(job_file.with_suffix("")) == before


def test_too_many_bad_rows_stay_too_many(run_tiny: TinyRunner) -> None:
    """The second row does not fit the pool, which shows only when the model is loaded."""
    job_file = run_tiny.write(prompts("a", "b" * 40), on_error="stop", engine={"num_blocks": 1})
    assert "stopped at failed row 1" in run_tiny.run_file(job_file).error
    assert "stopped at failed row 1" in run_tiny.run_file(job_file).error
    assert run_tiny.run_file(job_file, ["on_error=continue"]).exit_code == 3


def test_signal_before_the_first_row_leaves_nothing(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_signal(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run_room, "prepare_generation", raise_signal)
    job_file = run_tiny.write(prompts("note a"))
    with pytest.raises(Interrupted), Interrupt() as interrupt:
        run_room.run_job(load_job(job_file), quiet=True, interrupt=interrupt)
    assert list(job_file.with_suffix("").iterdir()) == []


def test_a_commit_can_come_after_every_step(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while no row ends, so that a finished row never waits for the end of another one."""
    asked: list[ResultWriter] = []
    commit_if_due = ResultWriter.commit_if_due

    def counted(self: ResultWriter) -> Any:
        asked.append(self)
        return commit_if_due(self)

    monkeypatch.setattr(ResultWriter, "commit_if_due", counted)
    result = run_tiny(prompts("a"), model=uniform_model, sampling={"max_tokens": 30, "ignore_eos": True})
    assert result.report["num_steps"] == 30
    assert len(asked) >= 30
