"""Chat templates chosen and given values by a job, seen in a run, a plan and a verification.

One token a byte, so `prompt_tokens` can be counted.
"""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast

from batchgen.job.plan_job import plan_job
from batchgen.job.verify import verify_run
from batchgen.spec.load import load_job
from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import CHATML, TAIL, byte_tokenizer

CALLS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}"
    "{{ m.tool_calls[0].function.arguments.a }}]{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
ARGUMENTS = (
    "{% for t in tools or [] %}{{ t.name }},{% endfor %}{% for d in documents or [] %}{{ d.text }},{% endfor %}"
    "{{ mode }}|{% for m in messages %}{{ m.content }}{% endfor %}"
)


def named() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"terse": TAIL, "long": CHATML}
    return tokenizer


def calls() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CALLS)


def arguments() -> PreTrainedTokenizerFast:
    return byte_tokenizer(ARGUMENTS)


def chatml() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CHATML)


def test_a_template_is_chosen_by_name(run_tiny: TinyRunner) -> None:
    refused = run_tiny(prompts("a"), tokenizer=named)
    assert refused.exit_code == 2
    assert "long, terse and none is called default; choose one with input.chat_template" in refused.error
    for name, num_tokens in {"terse": 7, "long": 20}.items():
        result = run_tiny(prompts("a"), tokenizer=named, input={"chat_template": name})
        assert result.column("prompt_tokens") == [num_tokens]
    unknown = run_tiny(prompts("a"), tokenizer=named, input={"chat_template": "ters"})
    assert (unknown.exit_code, "did you mean terse?" in unknown.error) == (2, True)


def test_a_template_file_is_used_by_run_plan_and_verification(run_tiny: TinyRunner) -> None:
    """The verification uses the template of the run, not what the file has become."""
    template = run_tiny.folder / "own.jinja"
    template.write_text("é\\n\x85{{ messages[0].content }}")
    job_file = run_tiny.write(prompts("a", "bc"), input={"chat_template": "own.jinja"})
    result = run_tiny.run_file(job_file)
    assert result.column("prompt_tokens") == [7, 8]
    assert plan_job(load_job(job_file), quiet=True).num_prompt_tokens == 15
    template.write_text("{{ messages[0].content }}!")
    assert verify_run(str(result.folder), num_rows=2, quiet=True).is_good
    assert result.resolved["job"]["input"]["chat_template"] == "é\\n\x85{{ messages[0].content }}"


@pytest.mark.parametrize("as_table", [False, True], ids=["jsonl", "parquet"])
def test_columns_give_tools_documents_and_variables(run_tiny: TinyRunner, as_table: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "t": [{"name": "f"}, {"name": "g"}], "d": [{"text": "D"}], "k": '{"mode": "x"}'},
        {"prompt": "b", "t": None, "d": [], "k": None},
    ]
    spec = {"tools": "t", "documents": "d", "chat_template_kwargs": "k"}
    result = run_tiny(pa.Table.from_pylist(rows) if as_table else rows, tokenizer=arguments, input=spec)
    assert result.completions == ["A", "B"]
    assert result.column("prompt_tokens") == [len("f,g,D,x|a"), len("|b")]


def test_the_job_file_gives_them_for_all_rows(run_tiny: TinyRunner, caplog: pytest.LogCaptureFixture) -> None:
    spec = {"tools": [{"name": "f"}], "chat_template_kwargs": {"mode": "x", "mood": "y"}, "system_template": "S"}
    with caplog.at_level(logging.WARNING, "batchgen"):
        result = run_tiny(prompts("a", "b"), tokenizer=arguments, input=spec)
    assert result.column("prompt_tokens") == [len("f,x|Sa")] * 2
    assert "input.chat_template_kwargs.mood: the chat template does not use it" in caplog.text
    assert verify_run(str(result.folder), num_rows=2, quiet=True).is_good


def test_a_column_of_tools_that_no_row_has_is_refused(run_tiny: TinyRunner) -> None:
    result = run_tiny([{"prompt": "a", "tool": []}], tokenizer=arguments, input={"tools": "tools"})
    assert (result.exit_code, "no column 'tools' (input.tools); did you mean 'tool'?" in result.error) == (2, True)


def test_tool_history_needs_no_content_and_arguments_may_be_json_text(run_tiny: TinyRunner) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": {"a": 1}}}
    as_text = {**call, "function": {"name": "sum", "arguments": '{"a": 1}'}}
    end = {"role": "tool", "content": "a"}
    begin = {"role": "user", "content": "add"}
    rows = [
        {"messages": [begin, {"role": "assistant", "content": None, "tool_calls": [call]}, end]},
        {"messages": [begin, {"role": "assistant", "tool_calls": [as_text]}, end]},
        {"messages": [{"role": "user", "content": None}]},
    ]
    result = run_tiny(rows, tokenizer=calls, input={"messages": "messages"})
    assert result.column("prompt_tokens") == [len("<user>add<assistant>[sum1]<tool>a")] * 2 + [None]
    assert "messages[0].content: expected text, found null" in result.rows[2]["error"]


def test_an_answer_is_continued_or_refused(run_tiny: TinyRunner) -> None:
    begun = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "1, 2,  a"}]
    job_file = run_tiny.write([{"m": begun}], tokenizer=chatml, input={"messages": "m", "continue_final_message": True})
    result = run_tiny.run_file(job_file)
    assert result.column("prompt_tokens") == [len("suser\ncounte\n" + "sassistant\n1, 2,  a")]
    assert result.completions == ["A"]
    assert plan_job(load_job(job_file), quiet=True).num_prompt_tokens == result.column("prompt_tokens")[0]
    refused = run_tiny([{"m": begun}, {"m": begun[:1]}], tokenizer=chatml, input={"messages": "m"})
    assert refused.exit_code == 3
    assert "input.continue_final_message: true" in refused.rows[0]["error"]
    assert refused.rows[1]["error"] is None
