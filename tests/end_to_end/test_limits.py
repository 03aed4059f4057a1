"""Rows at and beyond the limits of model, memory and patience: they fail alone, and their errors say how far off."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from batchgen.job import generate
from tests.end_to_end.harness import ModelFolders, TinyRunner, prompts, upper_model
from tests.tiny_models import byte_tokenizer, context_model, poison

HEAD = 6  # tokens of <|im_start|>user\n before every prompt


def poisoned_model() -> LlamaForCausalLM:
    return poison(context_model())


def test_generation_is_cut_at_the_context_limit(run_tiny: TinyRunner) -> None:
    rows = prompts(*("q" * length for length in (56, 57, 58, 59)))
    result = run_tiny(rows, model=context_model, engine={"max_model_len": 64})
    assert result.exit_code == 3
    assert result.column("prompt_tokens") == [62, 63, 64, 65]
    assert result.column("completion_tokens") == [2, 1, 0, 0]
    assert result.column("finish_reason") == ["length", "length", "error", "error"]
    for row, num_tokens in ((2, 64), (3, 65)):
        error = result.rows[row]["error"]
        assert f"line {row + 1}: " in error
        assert f"{num_tokens} tokens" in error
        assert "limit is 64" in error


def test_the_models_own_limit_holds_without_a_setting(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("q" * (511 - HEAD), "q" * (512 - HEAD)), model=context_model)
    assert result.column("completion_tokens") == [1, 0]
    assert result.column("finish_reason") == ["length", "error"]
    assert "limit is 512" in result.rows[1]["error"]


def test_limit_beyond_the_models_own_is_refused(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("a"), engine={"max_model_len": 513})
    assert result.exit_code == 2
    assert "engine.max_model_len" in result.error
    assert "512" in result.error


def test_prompt_larger_than_the_pool_fails_alone(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("note a", "x" * 100, "note b"), engine={"num_blocks": 4})
    assert result.exit_code == 3
    assert result.completions == ["A", None, "B"]
    error = result.rows[1]["error"]
    assert "106 tokens" in error
    assert "64" in error
    assert "engine.num_blocks" in error
    assert result.column("prompt_tokens") == [12, 106, 12]


def test_completion_larger_than_the_pool_fails_alone(run_tiny: TinyRunner) -> None:
    """Its prompt fits: 57 of 64 tokens; the 20 tokens it asks for do not."""
    rows = prompts("x" * 51, "short", "x" * 20)
    result = run_tiny(rows, model=context_model, sampling={"max_tokens": 20}, engine={"num_blocks": 4})
    assert result.exit_code == 3
    assert result.column("finish_reason") == ["error", "length", "length"]
    error = result.rows[0]["error"]
    assert re.search(r"\b(row|line) 1\b", error)
    assert "64 tokens" in error
    assert "prompt 57" in error
    assert "up to 77" in error
    assert result.column("completion_tokens")[1:] == [20, 20]


def test_row_that_fills_the_pool_exactly_is_good(run_tiny: TinyRunner) -> None:
    """57 + 8 tokens, the last of which is never stored."""
    result = run_tiny(prompts("x" * 51), model=context_model, engine={"num_blocks": 4})
    assert (result.exit_code, result.column("completion_tokens")) == (0, [8])
    assert result.report["peak_used_blocks"] == 4


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_logits_that_are_not_finite_fail_their_row_only(run_tiny: TinyRunner, max_num_seqs: int) -> None:
    """Rows before and after it share its first blocks, and use again the blocks in which it left its values."""
    shared = "the beginning that all rows share "
    texts = [f"{shared}{tail}" for tail in ("a", "b!" + "b" * 40, "c" * 30, "d!", "!", "e" * 50)]
    poisoned = [row for row, text in enumerate(texts) if "!" in text]
    engine = {"max_num_seqs": max_num_seqs, "num_blocks": 8 if max_num_seqs == 1 else 40}
    result = run_tiny(prompts(*texts), model=poisoned_model, engine=engine)
    assert result.exit_code == 3
    assert [row for row, reason in enumerate(result.column("finish_reason")) if reason == "error"] == poisoned
    for row in poisoned:
        assert re.search(rf"\b(row|line) {row + 1}\b", result.rows[row]["error"])
        assert "not finite" in result.rows[row]["error"]
    good = [text for text in texts if "!" not in text]
    alone = [run_tiny(prompts(text), model=poisoned_model).completions[0] for text in good]
    assert [text for text in result.completions if text] == alone


@pytest.mark.parametrize("attention", ["cpu", "torch", pytest.param("triton", marks=pytest.mark.slow)])
def test_row_that_goes_wrong_late_leaves_its_shared_beginning_intact(run_tiny: TinyRunner, attention: str) -> None:
    """It computes the blocks that the others find: what it holds before its first bad token is theirs too."""
    shared = "the beginning that all rows share "
    result = run_tiny(
        prompts(f"{shared}!", f"{shared}a", f"{shared}b"), model=poisoned_model, engine={"attention": attention}
    )
    assert result.column("cached_tokens") == [0, 40, 40]
    assert result.column("finish_reason") == ["error", "length", "length"]
    alone = [run_tiny(prompts(shared + tail), model=poisoned_model).completions[0] for tail in "ab"]
    assert result.completions[1:] == alone


def test_job_whose_rows_all_fail_reads_no_weights(
    run_tiny: TinyRunner, model_folders: ModelFolders, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folders.get(upper_model, byte_tokenizer, None), folder)
    (folder / "model.safetensors").unlink()
    result = run_tiny([{"prompt": None}, {}, {"prompt": "x" * 600}], model=folder)
    assert result.exit_code == 3
    assert result.column("finish_reason") == ["error"] * 3
    assert run_tiny(prompts("a"), model=folder).exit_code == 2  # as soon as one row is good, they are missed


BAD = [{"prompt": "note a"}, {"prompt": None}, {"prompt": "note c"}, {"prompt": 5}]


def test_on_error_stop_stops_at_the_first_bad_row(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "load_weights", _never)
    result = run_tiny(BAD, on_error="stop")
    assert result.exit_code == 2
    assert "line 2" in result.error
    assert not any(result.folder.glob("*"))


def test_on_error_stop_lets_a_good_job_finish(run_tiny: TinyRunner) -> None:
    assert run_tiny(BAD[::2], on_error="stop").completions == ["A", "C"]


def test_on_error_stop_also_stops_at_a_row_that_fails_while_it_runs(run_tiny: TinyRunner) -> None:
    result = run_tiny(b'{"prompt": "note a"}\n\n{"prompt": "!"}\n', model=poisoned_model, on_error="stop")
    assert result.exit_code == 2
    assert re.search(r"job-1-in\.jsonl line 3: .*not finite", result.error)
    assert not (result.folder / "_SUCCESS").exists()


def test_max_errors_is_how_many_bad_rows_are_borne(run_tiny: TinyRunner) -> None:
    borne = run_tiny(BAD, max_errors=2)
    assert (borne.exit_code, borne.completions) == (3, ["A", None, "C", None])
    stopped = run_tiny(BAD, max_errors=1)
    assert stopped.exit_code == 2
    assert "line 4" in stopped.error
    assert "max_errors" in stopped.error


def _never(*_: object) -> None:
    raise AssertionError("weights were read")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "n": 2, "logprobs": 1, "presence_penalty": 0.5}], ids=str)
def test_on_a_gpu_steps_are_measured_before_the_pool_is_sized(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    def peak_memory(device: torch.device, work: Callable[[], None]) -> int:
        work()
        return 10**18

    monkeypatch.setattr("batchgen.job.generate.can_measure_memory", lambda device: True)
    monkeypatch.setattr("batchgen.engine.build.peak_memory", peak_memory)
    result = run_tiny(prompts("a"), sampling=sampling)
    assert result.exit_code == 2
    assert "not a single KV block fits beside it" in result.error
