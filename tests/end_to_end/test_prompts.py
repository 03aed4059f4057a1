"""How a row becomes its prompt, seen in a run: BOS, system messages, templates, the clock, text that looks like code.

One token a byte, so `prompt_tokens` can be counted by hand: `<|im_start|>user\\n` has 6, `<|im_end|>\\n` has 2.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast

from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import CHATML, CLOCK, DEFAULT_SYSTEM, NO_SYSTEM, WITH_BOS, byte_tokenizer

SYSTEMS: list[dict[str, Any]] = [
    {"prompt": "a"},
    {"prompt": "a", "system": None},
    {"prompt": "a", "system": ""},
    {"prompt": "a", "system": "Be brief."},
]


def chatml() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CHATML)


def default_system() -> PreTrainedTokenizerFast:
    return byte_tokenizer(DEFAULT_SYSTEM)


def no_system() -> PreTrainedTokenizerFast:
    return byte_tokenizer(NO_SYSTEM)


def with_bos() -> PreTrainedTokenizerFast:
    return byte_tokenizer(WITH_BOS, add_bos=True)


def clock() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CLOCK)


def no_template() -> PreTrainedTokenizerFast:
    return byte_tokenizer(None)


def test_template_that_writes_bos_gives_one(run_tiny: TinyRunner) -> None:
    assert run_tiny(prompts("hi"), tokenizer=with_bos).column("prompt_tokens") == [22]


def test_raw_text_has_one_bos_whether_written_or_not(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("hi", "<bos>hi"), tokenizer=with_bos, input={"text": "prompt"})
    assert result.column("prompt_tokens") == [3, 3]


@pytest.mark.parametrize(
    ("tokenizer", "num_tokens"), [(chatml, [20, 20, 30, 39]), (default_system, [39, 39, 30, 39])], ids=["plain", "own"]
)
def test_absent_system_is_not_an_empty_one(run_tiny: TinyRunner, tokenizer: Any, num_tokens: list[int]) -> None:
    result = run_tiny(SYSTEMS, tokenizer=tokenizer, input={"system": "system"})
    assert result.exit_code == 0
    assert result.column("prompt_tokens") == num_tokens


def test_rows_share_what_was_rendered_not_what_the_column_says(run_tiny: TinyRunner) -> None:
    result = run_tiny(SYSTEMS, tokenizer=default_system, input={"system": "system"}, engine={"max_num_seqs": 1})
    cached = dict(zip(["absent", "null", "empty", "given"], result.column("cached_tokens"), strict=True))
    assert cached["empty"] <= 8  # the tokens before the system text
    assert sorted(cached[name] for name in ("absent", "null", "given")) == [
        0,
        38,
        38,
    ]  # of 39 tokens two full blocks, and 6 copied


def test_row_that_the_template_refuses_fails_in_its_words(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "a", "system": "s"}, {"prompt": "b"}, {"prompt": "c", "system": "s"}]
    result = run_tiny(rows, tokenizer=no_system, input={"system": "system"})
    assert result.exit_code == 3
    assert result.column("finish_reason")[1] == "length"
    for row in (0, 2):
        assert "no system role here" in result.rows[row]["error"]
        assert f"line {row + 1}" in result.rows[row]["error"]


@pytest.mark.parametrize("way", ["prompt", "messages"])
def test_chat_for_a_model_without_a_template_is_refused(run_tiny: TinyRunner, way: str) -> None:
    rows = [{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}]
    result = run_tiny(rows, tokenizer=no_template, input={way: way})
    assert result.exit_code == 2
    assert "chat template" in result.error
    assert "model-" in result.error  # its path
    assert run_tiny(rows, tokenizer=no_template, input={"text": "prompt"}).exit_code == 0


def test_clock_stands_still_and_is_recorded(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": text, "system": "s" * 38} for text in "abcde"]
    result = run_tiny(rows, tokenizer=clock, input={"system": "system"}, engine={"max_num_seqs": 1})
    assert result.exit_code == 0
    assert result.column("cached_tokens")[0] == 0
    assert all(cached >= 48 for cached in result.column("cached_tokens")[1:])
    assert len(set(result.column("prompt_tokens"))) == 1
    assert abs(datetime.now() - datetime.fromisoformat(result.resolved["clock"])) < timedelta(minutes=5)


def test_control_tokens_and_braces_in_a_row_are_text(run_tiny: TinyRunner) -> None:
    texts = ["a<|im_end|>b", '{"k": "{x}"} {{ 7*7 }} ${HOME}']
    result = run_tiny(prompts(*texts))
    assert result.exit_code == 0
    assert result.column("prompt_tokens") == [12 + 6, 30 + 6]
    assert result.column("prompt") == texts


def test_user_template_keeps_json_braces_and_its_values_are_text(run_tiny: TinyRunner) -> None:
    values = ["note a", "{{ 7*7 }}a", "<|im_end|>a"]
    template = 'Reply as {"label": "..."} for {{ prompt }}'
    result = run_tiny(prompts(*values), input={"template": template})
    assert result.exit_code == 0
    assert result.completions == ["A", "A", "A"]
    rendered = [f'Reply as {{"label": "..."}} for {value}' for value in values]
    assert result.column("prompt_tokens") == [6 + len(text) for text in rendered]


def test_user_template_with_a_stray_placeholder_is_refused_by_its_name(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("note a"), input={"template": 'Reply as {"label": "..."} for {prompt}'})
    assert result.exit_code == 2
    assert "{prompt}" in result.error


def test_template_reads_several_columns_and_a_missing_one_fails_its_row(run_tiny: TinyRunner) -> None:
    rows = [{"question": "q", "choice": "a"}, {"question": "q"}]
    result = run_tiny(rows, input={"template": "{{ question }}: {{ choice }}"})
    assert result.completions == ["A", None]
    assert "choice" in result.rows[1]["error"]
    assert result.column("question") == ["q", "q"]


def test_messages_of_a_whole_conversation(run_tiny: TinyRunner) -> None:
    turns = [("system", "s"), ("user", "u"), ("assistant", "x"), ("user", "note a")]
    rows = [{"chat": [{"role": role, "content": content} for role, content in turns]}]
    result = run_tiny(rows, input={"messages": "chat"})
    assert result.completions == ["A"]
    assert result.column("prompt_tokens") == [sum(2 + len(role) + len(content) for role, content in turns)]


def test_token_ids_are_used_as_they_are(run_tiny: TinyRunner) -> None:
    ids = pa.array([list(b"note a"), [], list(b"note b"), [264]], pa.list_(pa.uint16()))
    result = run_tiny(pa.table({"ids": ids}), input={"token_ids": "ids"}, tokenizer=with_bos)
    assert result.exit_code == 3
    assert result.completions == ["A", None, "B", None]
    assert result.column("prompt_tokens") == [6, None, 6, None]
    assert "264" in result.rows[3]["error"]  # ids go from 0 to 263
