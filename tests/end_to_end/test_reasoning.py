"""Models that think before they answer: what is thinking, what is answer, and what ends each."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from batchgen.engine.runner import ModelRunner
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.unfinished import export_committed
from batchgen.job.export import export_job
from batchgen.job.plan_job import plan_job
from batchgen.job.verify import verify_run
from batchgen.spec.load import load_job
from tests.end_to_end.harness import ADDED, MakeTokenizer, Result, TinyRunner, answers, prompts
from tests.end_to_end.interrupted import Stop, stop_after
from tests.tiny_models import (
    END_THINK,
    EOS,
    TAIL,
    THINK,
    byte_tokenizer,
    context_model,
    table_model,
    thinking_model,
    thinking_tokenizer,
)

SPLIT = {"reasoning": "split", "token_ids": True}
LETTERS = b"defg"


def open_tokenizer() -> PreTrainedTokenizerFast:
    """The prompt ends inside the thinking, with the last character of the user's text."""
    return thinking_tokenizer(TAIL + "<think>{{ messages[-1]['content'][-1] }}")


def closed_tokenizer() -> PreTrainedTokenizerFast:
    """The prompt has an empty thinking."""
    return thinking_tokenizer(TAIL + "<think>\n\n</think>")


def drawing_model() -> LlamaForCausalLM:
    """Begins to think or answers at once, in small or capital letters; with top_k 4 all of it is by chance."""
    table: dict[int, list[int]] = {ord("a"): [THINK, *b"WXY"], THINK: [*LETTERS], END_THINK: [*b"WXYZ"]}
    table |= {letter: [*LETTERS[:3], END_THINK] for letter in LETTERS} | {letter: [*b"WXY", EOS] for letter in b"WXYZ"}
    return table_model(table)


def spelling_model() -> LlamaForCausalLM:
    """Thinks `hm` between the texts `[(` and `)]`, which are two tokens each, and answers `YES`."""
    return table_model(dict(pairwise([*b"a[(hm)] YES", EOS])))


def ids(text: str) -> list[int]:
    """`<` and `>` are the tags, `$` is the end token."""
    return [{"<": THINK, ">": END_THINK, "$": EOS}.get(char, ord(char)) for char in text]


def run(run_tiny: TinyRunner, *texts: str, tokenizer: MakeTokenizer = thinking_tokenizer, **job: Any) -> Result:
    result = run_tiny(prompts(*texts), **{"model": thinking_model, "tokenizer": tokenizer, "output": SPLIT, **job})
    assert result.error == ""
    return result


def rows_of(result: Result) -> list[tuple[Any, ...]]:
    names = ("reasoning", "completion", "finish_reason", "reasoning_tokens", "completion_token_ids")
    return [tuple(row[name] for name in names) for row in result.rows]


# Columns


def test_split_adds_two_columns_and_drop_none(run_tiny: TinyRunner) -> None:
    split = run(run_tiny, "a", "b", output={"reasoning": "split"})
    types = [*ADDED, ("reasoning", pa.string()), ("reasoning_tokens", pa.int32())]
    assert [(field.name, field.type) for field in split.table.schema] == [("prompt", pa.string()), *types]
    assert split.column("completion_tokens") == [10, 2]
    assert split.column("reasoning_tokens") == [6, 0]  # the tags and the whitespace beside them are among them
    assert list(zip(split.completions, split.column("reasoning"), strict=True)) == [("YES", "hm"), ("B", None)]
    drop = run(run_tiny, "a", "b", output={"reasoning": "drop"})
    assert drop.table.schema.names == ["prompt", *(name for name, _ in ADDED)]
    assert drop.completions == ["YES", "B"]


def test_thinking_is_kept_by_default(run_tiny: TinyRunner) -> None:
    for output in ({"token_ids": True}, {"token_ids": True, "reasoning": "keep"}):
        result = run(run_tiny, "a", "b", output=output, sampling={"max_tokens": 9, "stop": ["E"]})
        assert result.completions == ["<think>\nhm</think> Y", "B"]
        assert result.column("completion_token_ids") == [ids("<\nhm> YE"), ids("B$")]
        assert not {"reasoning", "reasoning_tokens"}.intersection(result.table.schema.names)
    assert run(run_tiny, "a", output={}, sampling={"stop": ["m"]}).completions == ["<think>\nh"]


def test_columns_have_the_prefix_and_are_in_json_lines(run_tiny: TinyRunner) -> None:
    output = {**SPLIT, "prefix": "gen_", "format": "jsonl"}
    rows = [{"prompt": text, "reasoning": n} for n, text in enumerate("ab")]
    result = run_tiny(rows, model=thinking_model, tokenizer=thinking_tokenizer, output=output)
    lines = [json.loads(line) for line in (result.folder / "completions/part-00000.jsonl").read_text().splitlines()]
    assert [(line["reasoning"], line["gen_reasoning"], line["gen_reasoning_tokens"]) for line in lines] == [
        (0, "hm", 6), (1, None, 0)
    ]  # fmt: skip
    refused = run_tiny(rows, model=thinking_model, tokenizer=thinking_tokenizer, output={"reasoning": "split"})
    assert refused.exit_code == 2
    assert "already has a column named reasoning; set output.prefix" in refused.error


def test_every_token_has_its_logprob(run_tiny: TinyRunner) -> None:
    [logprobs] = run(run_tiny, "a", sampling={"logprobs": 0}).column("logprobs")
    assert [entry["token_id"] for entry in logprobs] == ids("<\nhm> YES$")


# What ends what


@pytest.mark.parametrize(
    ("sampling", "reasoning", "completion", "reason", "tokens"),
    [
        ({}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"stop": ["h", "\n", " "]}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"stop": ["m", "S"]}, "hm", "YE", "stop", "<\nhm> YES"),
        ({"stop": ["</think>"]}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"stop_token_ids": [ord("m"), ord(" "), END_THINK]}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"stop_token_ids": [ord("h"), ord("S")]}, "hm", "YE", "stop", "<\nhm> YES"),
        ({"stop_token_ids": [ord("Y")]}, "hm", "", "stop", "<\nhm> Y"),
        ({"max_tokens": 1}, "hm", "Y", "length", "<\nhm> Y"),
        ({"max_tokens": 3}, "hm", "YES", "length", "<\nhm> YES"),
        ({"max_tokens": 4}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"min_tokens": 3, "max_tokens": 4}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"min_tokens": 4, "max_tokens": 4}, "hm", "YES\x00", "length", "<\nhm> YES\x00"),
        ({"min_tokens": 3, "stop": ["Y", "S"], "max_tokens": 4}, "hm", "YE", "stop", "<\nhm> YES"),
        ({"min_tokens": 2, "stop_token_ids": [ord("m"), ord("S")]}, "hm", "YE", "stop", "<\nhm> YES"),
        ({"ignore_eos": True, "max_tokens": 5}, "hm", "YES\x00", "length", "<\nhm> YES$\x00"),
        ({"max_reasoning_tokens": 3}, "hm", "YES", "stop", "<\nhm> YES$"),
        ({"max_reasoning_tokens": 2}, "h", "YES", "stop", "<\nh> YES$"),
        ({"max_reasoning_tokens": 0, "max_tokens": 2}, "", "YE", "length", "<> YE"),
        ({"max_reasoning_tokens": 2, "stop": ["h", "E"], "min_tokens": 2}, "h", "Y", "stop", "<\nh> YE"),
        ({"structured": {"choice": ["NO", "YET"]}}, "hm", "YET", "stop", "<\nhm> YET"),
        ({"structured": {"choice": ["NO", "YET"]}, "max_reasoning_tokens": 1}, "", "YET", "stop", "<\n> YET"),
        ({"structured": {"regex": "Y[E-H]*"}, "max_tokens": 2}, "hm", "YE", "length", "<\nhm> YE"),
        ({"presence_penalty": 0.1, "max_reasoning_tokens": 2}, "h", "YES", "stop", "<\nh> YES$"),
    ],
)
def test_limits_and_stops_are_those_of_the_answer(
    run_tiny: TinyRunner, sampling: dict[str, Any], reasoning: str, completion: str, reason: str, tokens: str
) -> None:
    [row] = rows_of(run(run_tiny, "a", sampling=sampling))
    assert row == (reasoning, completion, reason, len(tokens[: tokens.index(">")]) + 2, ids(tokens))


@pytest.mark.parametrize(
    ("sampling", "completion", "reason", "tokens"),
    [
        ({}, "B", "stop", "B$"),
        ({"max_tokens": 1}, "B", "length", "B"),
        ({"stop": ["B"]}, "", "stop", "B"),
        ({"stop_token_ids": [ord("B")]}, "", "stop", "B"),
        ({"max_reasoning_tokens": 0}, "B", "stop", "B$"),
        ({"structured": {"choice": ["BE", "NO"]}}, "BE", "stop", "BE"),
    ],
)
def test_a_completion_without_thinking_is_as_ever(
    run_tiny: TinyRunner, sampling: dict[str, Any], completion: str, reason: str, tokens: str
) -> None:
    assert rows_of(run(run_tiny, "b", sampling=sampling)) == [(None, completion, reason, 0, ids(tokens))]


def test_tags_of_several_tokens(run_tiny: TinyRunner) -> None:
    output = {**SPLIT, "reasoning_tags": ["[(", ")]"]}
    job: dict[str, Any] = {"model": spelling_model, "tokenizer": byte_tokenizer, "output": output}
    for sampling, expected in (
        ({"stop": ["(", "m", "E"]}, ("hm", "Y", "stop", 7, ids("[(hm)] YE"))),
        ({"max_tokens": 1}, ("hm", "Y", "length", 7, ids("[(hm)] Y"))),
        ({"max_reasoning_tokens": 1}, ("h", "YES", "stop", 6, ids("[(h)] YES$"))),
        ({"structured": {"choice": ["NO", "YET"]}}, ("hm", "YET", "stop", 7, ids("[(hm)] YET"))),
    ):
        assert rows_of(run(run_tiny, "a", sampling=sampling, **job)) == [expected]


def test_a_prompt_that_opens_the_thinking(run_tiny: TinyRunner) -> None:
    """It goes on in the completion, which may repeat the tag, and be ended by an end token or by a limit."""
    job: dict[str, Any] = {"tokenizer": open_tokenizer, "engine": {"max_model_len": 40}}
    result = run(run_tiny, "a", "b", "c", sampling={"max_tokens": 3}, **job)
    assert rows_of(result)[:2] == [
        ("hm", "YES", "length", 6, ids("<\nhm> YES")),
        ("B", None, "stop", 1, ids("B$")),
    ]
    reasoning, completion, reason, num_tokens, token_ids = rows_of(result)[2]
    assert (reasoning, completion, reason) == ("ol" * (num_tokens // 2) + "o" * (num_tokens % 2), None, "length")
    assert num_tokens == len(token_ids) == 40 - result.column("prompt_tokens")[2]
    budget = run(run_tiny, "c", sampling={"max_reasoning_tokens": 5}, **job)
    assert rows_of(budget) == [("ololo", "YES", "stop", 7, ids("ololo> YES$"))]


def test_a_prompt_that_closes_the_thinking(run_tiny: TinyRunner) -> None:
    """The completion is an answer from its first token on."""
    result = run(run_tiny, "a", tokenizer=closed_tokenizer, sampling={"max_tokens": 3, "max_reasoning_tokens": 1})
    assert rows_of(result) == [(None, " YE", "length", 0, ids(" YE"))]
    begun = thinking_tokenizer(TAIL + "<think></think>{{ messages[-1]['content'][-1] }}")
    assert run(run_tiny, "a", tokenizer=lambda: begun, sampling={"max_tokens": 3}).completions == ["<think>\nh"]
    form = {"structured": {"choice": ["<think>", "NO"]}}
    assert run(run_tiny, "a", tokenizer=closed_tokenizer, sampling=form).completions == ["<think>"]


def test_a_forbidden_end_tag_fails_the_row(run_tiny: TinyRunner) -> None:
    result = run(run_tiny, "a", sampling={"bad_words": ["</think>"], "max_reasoning_tokens": 1})
    assert (result.column("finish_reason"), result.column("reasoning")) == (["error"], [""])
    assert "bad_words forbids the end tag of the thinking" in result.column("error")[0]


# Draws, samples and other rows


def draw(run_tiny: TinyRunner, rows: list[dict[str, Any]], **job: Any) -> Result:
    """Run rows whose thinking ends by chance."""
    sampling = {"temperature": 16, "top_k": 4, "seed": 5, "n": 3, "max_tokens": 20}
    columns = {"id": "id", "sampling": "own"}
    rows = [{"prompt": "a", "own": None, **row} for row in rows]
    result = run_tiny(
        rows, model=drawing_model, tokenizer=thinking_tokenizer, output=SPLIT, input=columns, sampling=sampling, **job
    )
    assert (result.error, result.exit_code) == ("", 0)
    assert (result.report["num_preemptions"] > 0) == ("num_blocks" in job.get("engine", {}))
    return result


def drawn(run_tiny: TinyRunner, rows: list[dict[str, Any]], **job: Any) -> dict[tuple[int, int], list[Any]]:
    """The samples of such rows, by row and sample."""
    names = ("reasoning", "completion", "finish_reason", "completion_token_ids")
    result = draw(run_tiny, rows, **job)
    return {(row["id"], row["sample_index"]): [row[name] for name in names] for row in result.rows}


OWN: list[dict[str, Any]] = [
    {},
    {"max_reasoning_tokens": 2},
    {"max_reasoning_tokens": 0, "max_tokens": 2},
    {"structured": {"regex": "[WX]{1,9}"}, "max_reasoning_tokens": 4},
    {"structured": {"regex": "[WX]{1,9}"}},
    {"stop": ["e", "Z"], "min_tokens": 2},
    {"max_tokens": 1},
    {"presence_penalty": 1, "max_reasoning_tokens": 3},
]


def test_every_sample_thinks_for_itself(run_tiny: TinyRunner) -> None:
    samples = drawn(run_tiny, [{"id": n, "own": own} for n, own in enumerate(OWN)])
    assert len(samples) == 3 * len(OWN)
    for (row, _), (reasoning, completion, _, token_ids) in samples.items():
        own, thought, answer = OWN[row], token_ids[:0], token_ids
        if token_ids[0] == THINK:
            thought, answer = token_ids[1 : token_ids.index(END_THINK)], token_ids[token_ids.index(END_THINK) + 1 :]
        assert reasoning == (bytes(thought).decode() if token_ids[0] == THINK else None)
        assert len(thought) <= own.get("max_reasoning_tokens", len(thought))
        assert len(answer) <= own.get("max_tokens", 20)
        # Without the end token, the fourth best is any of those that are never the next one.
        assert set(completion) <= set("WX" if "structured" in own else "WXYZ") or "min_tokens" in own
    assert all({samples[row, n][0] is None for row in range(len(OWN))} == {False, True} for n in range(3))
    assert any(samples[1, n][0] and len(samples[1, n][0]) == 2 for n in range(3))
    assert len({samples[0, n][1] for n in range(3)}) > 1


def test_any_way_of_running_gives_the_same(run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in another order, preempted, and with the results of a step one step late where they may be."""
    rows = [{"id": n, "prompt": "some beginning, " * (n % 3) + "a", "own": own} for n, own in enumerate(2 * OWN)]
    expected = drawn(run_tiny, rows)
    assert drawn(run_tiny, rows, engine={"max_num_seqs": 1}) == expected
    assert drawn(run_tiny, rows[::-1], engine={"max_num_seqs": 3}) == expected
    small = {"block_size": 4, "num_blocks": 48, "expected_tokens": 1}
    assert drawn(run_tiny, rows, engine=small) == expected
    init = ModelRunner.__init__

    def lagging(runner: ModelRunner, *given: Any, **keywords: Any) -> None:
        init(runner, *given, **keywords)
        runner.lag = 1

    monkeypatch.setattr(ModelRunner, "__init__", lagging)
    assert drawn(run_tiny, rows) == expected
    assert drawn(run_tiny, rows, engine=small) == expected
    late = [n for n, own in enumerate(2 * OWN) if not {"structured", "min_tokens", "presence_penalty"} & {*own}]
    result = draw(run_tiny, [rows[n] for n in late])
    assert result.report["num_overrun_tokens"] > 0
    assert result.column("reasoning") == [expected[n, sample][0] for n in late for sample in range(3)]
    assert result.completions == [expected[n, sample][1] for n in late for sample in range(3)]


def test_a_budget_changes_no_draw_before_it(run_tiny: TinyRunner) -> None:
    free = drawn(run_tiny, [{"id": 1}, {"id": 2}])
    both = drawn(run_tiny, [{"id": 1}, {"id": 2, "own": {"max_reasoning_tokens": 2}}])
    for sample in range(3):
        assert both[1, sample] == free[1, sample]
        assert both[2, sample][3][:3] == free[2, sample][3][:3]


def test_a_form_of_json_after_the_thinking(run_tiny: TinyRunner) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["sum", "list"]}, "size": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["kind", "size"],
        "additionalProperties": False,
    }
    sampling = {
        "structured": {"json_schema": schema},
        "max_tokens": 40,
        "max_reasoning_tokens": 8,
        "n": 2,
        "temperature": 1,
    }
    result = run(run_tiny, "one", "two", model=context_model, tokenizer=open_tokenizer, sampling=sampling)
    assert [json.loads(text or "").keys() for text in result.completions] == [{"kind", "size"}] * 4
    assert result.column("finish_reason") == ["stop"] * 4
    assert all(1 <= num <= 8 + 1 + 4 for num in result.column("reasoning_tokens"))


# Resume, export, verify


JOB: dict[str, Any] = {
    "model": drawing_model,
    "tokenizer": thinking_tokenizer,
    "input": {"id": "id"},
    "sampling": {"temperature": 16, "top_k": 4, "seed": 5, "n": 2, "max_tokens": 20, "max_reasoning_tokens": 6},
    "engine": {"max_num_seqs": 1},
    "output": SPLIT,
}
ROWS = [{"id": n, "prompt": "a"} for n in range(6)]


def test_a_stopped_run_goes_on_and_its_columns_can_be_exported(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = answers(run_tiny(ROWS, **JOB))
    job_file = run_tiny.write(ROWS, **JOB)
    stop_after(monkeypatch, 5)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    folder = OutputFolder(str(job_file.with_suffix("")))
    assert export_committed(folder, tmp_path / "plain") == 4
    assert export_job(load_job(job_file), folder, tmp_path / "joined") == 4
    names = ("completion", "reasoning", "reasoning_tokens")
    for part in (tmp_path / "plain", tmp_path / "joined"):
        exported = pq.read_table(part).select(names).to_pylist()
        assert exported == [{name: row[name] for name in names} for row in expected[:4]]
    result = run_tiny.run_file(job_file)
    assert answers(result) == expected
    assert result.report["num_resumed_rows"] == 2


def test_a_finished_run_is_opened_again_for_more_rows(run_tiny: TinyRunner) -> None:
    job_file = run_tiny.write(ROWS[:3], **JOB)
    assert run_tiny.run_file(job_file).error == ""
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    job_file.with_name(f"{job_file.stem}-in.jsonl").write_bytes(lines)
    result = run_tiny.run_file(job_file)
    assert result.report["num_resumed_rows"] == 3
    assert answers(result) == answers(run_tiny(ROWS, **JOB))


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_columns_of_the_input_that_are_named_like_optional_ones(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format: str
) -> None:
    """They are not taken for added ones when a finished run is opened again, or an unfinished one exported."""
    rows = [{"prompt": text, "reasoning": n, "logprobs": str(n)} for n, text in enumerate("abab")]
    job: dict[str, Any] = {"model": thinking_model, "tokenizer": thinking_tokenizer, "engine": {"max_num_seqs": 1}}
    job_file = run_tiny.write(rows[:2], output={"format": format}, **job)
    assert run_tiny.run_file(job_file).error == ""
    job_file.with_name(f"{job_file.stem}-in.jsonl").write_bytes(
        b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    )
    stop_after(monkeypatch, 1)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    assert export_job(load_job(job_file), OutputFolder(str(job_file.with_suffix(""))), tmp_path / "export") == 3
    assert run_tiny.run_file(job_file).report["num_resumed_rows"] == 3
    [path] = job_file.with_suffix("").glob("completions/*")
    written = pq.read_table(path).to_pylist() if format == "parquet" else list(map(json.loads, path.open()))
    assert [(row["reasoning"], row["logprobs"]) for row in written] == [(n, str(n)) for n in range(4)]


def test_verify_compares_the_thinking_too(run_tiny: TinyRunner) -> None:
    sampling = {"max_reasoning_tokens": 2}
    for output in (SPLIT, {"reasoning": "split"}, {"reasoning": "drop"}, {"reasoning": "split", "format": "jsonl"}):
        result = run_tiny(
            prompts("a", "b"), **{**JOB, "model": thinking_model, "input": {}, "output": output, "sampling": sampling}
        )
        assert list(verify_run(str(result.folder), num_rows=9, quiet=True).lines()) == [
            "rows=2 same=2 ties=0 different=0"
        ]
    result = run(run_tiny, "a", "b", sampling=sampling, output={"reasoning": "split"})
    change_column(result, "reasoning", ["x", None])
    [line, last] = verify_run(str(result.folder), num_rows=9, quiet=True).lines()
    assert line.startswith("row 0, sample 0: different at token 2")
    assert line.endswith("written 'xYES' (stop), alone 'hYES' (stop)")
    change_column(result, "reasoning", ["h", None])
    change_column(result, "completion", ["YEP", "B"])
    [line, last] = verify_run(str(result.folder), num_rows=9, quiet=True).lines()
    assert line.startswith("row 0, sample 0: different at token 7")
    assert last == "rows=2 same=1 ties=0 different=1"


def change_column(result: Result, name: str, values: list[str | None]) -> None:
    [path] = result.folder.glob("completions/*")
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.string())), path)


# The job file


@pytest.mark.parametrize("override", ["output.reasoning=drop", "output.reasoning_tags=[<a>, </a>]"])
def test_other_tags_or_columns_make_another_job(run_tiny: TinyRunner, override: str) -> None:
    job_file = run_tiny.write(ROWS, **JOB)
    assert run_tiny.run_file(job_file).error == ""
    key = override.partition("=")[0]
    assert f"{key}: was " in run_tiny.run_file(job_file, [override]).error


def test_the_resolved_job_names_the_tags(run_tiny: TinyRunner) -> None:
    resolved = run(run_tiny, "a").resolved
    assert resolved["job"]["output"]["reasoning_tags"] == ["<think>", "</think>"]
    assert resolved["sources"]["output.reasoning_tags"] == "model"
    assert resolved["sources"]["sampling.max_reasoning_tokens"] == "default"
    kept = run(run_tiny, "a", output={}).resolved
    assert kept["job"]["output"]["reasoning_tags"] is None


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"tokenizer": byte_tokenizer}, "output.reasoning: split: it is not known how this model marks its thinking"),
        ({"output": {"reasoning_tags": ["<a>", "</a>"]}}, "reasoning_tags can be used with reasoning: split or drop"),
        (
            {"output": {"reasoning": "split", "reasoning_tags": ["a", "a"]}},
            "output: reasoning_tags must be two different texts",
        ),
        ({"output": {"reasoning": "split", "reasoning_tags": ["a"]}}, "output.reasoning_tags: expected"),
        ({"output": {"reasoning": "split", "reasoning_tags": ["a", ""]}}, "output.reasoning_tags[1]: expected"),
        (
            {"output": {}, "sampling": {"max_reasoning_tokens": 5}},
            "sampling.max_reasoning_tokens: the job keeps thinking in the completion; set output.reasoning",
        ),
        ({"sampling": {"thinking_budget": 5}}, "did you mean max_reasoning_tokens?"),
    ],
)
def test_what_cannot_be_had_is_refused(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("batchgen.job.generate.load_weights", None)  # it must not come so far
    given = {"model": thinking_model, "tokenizer": thinking_tokenizer, "output": SPLIT, **job}
    result = run_tiny(prompts("a"), **given)
    assert result.exit_code == 2
    assert words in result.error


def test_a_budget_in_a_row_of_a_job_that_keeps_thinking_fails_the_row(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "a", "own": {"max_reasoning_tokens": 5}}, {"prompt": "a", "own": {}}]
    result = run_tiny(rows, model=thinking_model, tokenizer=thinking_tokenizer, input={"sampling": "own"})
    assert result.column("finish_reason") == ["error", "length"]
    assert "max_reasoning_tokens: the job keeps thinking in the completion" in result.column("error")[0]


def test_rows_have_budgets_of_their_own(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "a", "own": {"max_reasoning_tokens": budget}} for budget in (0, 2, None)]
    job: dict[str, Any] = {"input": {"sampling": "own"}, "sampling": {"max_reasoning_tokens": 1}, "output": SPLIT}
    result = run_tiny(rows, model=thinking_model, tokenizer=open_tokenizer, **job)
    assert result.column("reasoning") == ["", "", ""]
    assert result.column("completion_token_ids") == [ids("> YES$"), ids("<\n> YES$"), ids("<> YES$")]


def test_the_plan_counts_thinking(run_tiny: TinyRunner) -> None:
    def planned(**sampling: int) -> tuple[int, str]:
        job_file = run_tiny.write(
            prompts("a"), model=thinking_model, tokenizer=thinking_tokenizer, output=SPLIT, sampling=sampling
        )
        time = plan_job(load_job(job_file), quiet=True).time
        return time.num_output_tokens, time.output_source

    most = "sampling.max_tokens and max_reasoning_tokens a row, the most there can be"
    assert planned(max_tokens=8, max_reasoning_tokens=20) == (8 + 20 + 2 + 8, most)
    assert planned(max_tokens=8)[1].endswith("a guess, as sampling.max_tokens and max_reasoning_tokens are not set")


def test_a_message_that_is_continued_may_be_inside_its_thinking(run_tiny: TinyRunner) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]}
        for content in ("<think>h", "<think>h</think> YE", "h")
    ]
    columns = {"messages": "messages", "continue_final_message": True}
    job: dict[str, Any] = {"input": columns, "tokenizer": thinking_tokenizer, "output": SPLIT}
    result = run_tiny(rows, model=thinking_model, **job)
    assert [row[:2] for row in rows_of(result)] == [("m", "YES"), (None, "S"), (None, "m</think> YES")]
