"""Jobs on checkpoints as they are found: files that disagree, files that were not fetched, parts that are not text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.end_to_end.harness import TinyRunner, prompts
from tests.families.multimodal import tiny_multimodal
from tests.tiny_models import EOS, IM_END, byte_tokenizer, save_model, script, table_model


def chatting_model() -> PreTrainedModel:
    """Answers AB and the end of its turn, and goes on with CD and the end of the text."""
    return table_model({**script(">", "AB", end=IM_END), IM_END: ord("C"), ord("C"): ord("D"), ord("D"): EOS})


def tuned_tokenizer() -> PreTrainedTokenizerFast:
    """As fine-tuning leaves it: only the tokenizer knows the end of a turn."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


@pytest.mark.parametrize("generation_config", [{}, {"eos_token_id": EOS}], ids=["without", "with a stale file"])
def test_a_turn_ends_at_the_end_token_that_only_the_tokenizer_declares(
    run_tiny: TinyRunner, caplog: pytest.LogCaptureFixture, generation_config: Mapping[str, Any]
) -> None:
    job: dict[str, Any] = {
        "model": chatting_model, "tokenizer": tuned_tokenizer, "generation_config": generation_config
    }  # fmt: skip
    with caplog.at_level("INFO", "batchgen"):
        result = run_tiny(prompts("x>"), **job, sampling={"max_tokens": 12})
    assert (result.completions, result.column("finish_reason")) == (["AB"], ["stop"])
    assert result.resolved["eos_token_ids"] == [EOS, IM_END]
    (line,) = (message for message in caplog.messages if "end tokens differ" in message)
    assert f"config.json: <eos> {EOS}" in line
    assert f"the tokenizer: <|im_end|> {IM_END}" in line
    endless = run_tiny(prompts("x>"), **job, sampling={"max_tokens": 12, "ignore_eos": True})
    assert endless.column("completion_tokens") == [12]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer_is_refused_before_the_weights(run_tiny: TinyRunner, tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / "model", chatting_model(), byte_tokenizer())
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 92000000\n"
    (folder / name).write_text(pointer)
    result = run_tiny(prompts("x>"), model=folder)
    assert result.exit_code == 2
    assert f"{name} is a Git LFS pointer, not the file itself; fetch it with: git lfs pull" in result.error


def test_a_multimodal_checkpoint_runs_on_text_and_fails_rows_with_images(
    run_tiny: TinyRunner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path / "model", tiny_multimodal("gemma3"), byte_tokenizer())
    contents = [[{"type": "text", "text": "hi"}], [{"type": "image", "image": "a.png"}, {"type": "text", "text": "hi"}]]
    rows = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    with caplog.at_level("INFO", "batchgen"):
        result = run_tiny(rows, model=folder, input={"messages": "messages"}, sampling={"max_tokens": 2})
    assert result.exit_code == 3
    good, bad = result.rows
    assert (good["error"], good["completion_tokens"]) == (None, 2)
    assert "messages[0].content[0]" in bad["error"]
    assert "'image'" in bad["error"]
    assert any("only its language part (gemma3_text) is loaded; images" in message for message in caplog.messages)
