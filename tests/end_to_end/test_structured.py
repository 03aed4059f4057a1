"""Completions of a given form (`sampling.structured`), on tiny models that would write something else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.job.plan_job import plan_job
from batchgen.job.run import run_job
from batchgen.spec.load import load_job
from tests.end_to_end.harness import CATS, GREEDY, TinyRunner, cat_model, drops_spaces, prompts
from tests.tiny_models import context_model, uniform_model

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["sum", "list"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 4},
    },
    "required": ["kind", "size", "note"],
    "additionalProperties": False,
}
LONGEST = 60  # tokens, one a byte, of JSON under this schema: 41 and four characters of at most four bytes
FORMS: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": "[a-c]{2,5}"},
    {"choice": ["yes", "no", "it depends"]},
    {"grammar": 'root ::= ("ab" | "cd") [0-9]{3}'},
]


def has_form(text: str, form: Mapping[str, Any]) -> bool:
    match form:
        case {"json_schema": schema}:
            jsonschema.validate(json.loads(text), json.loads(schema) if isinstance(schema, str) else schema)
            return " " not in text.split('"note"')[0]
        case {"regex": pattern}:
            return re.fullmatch(pattern, text) is not None
        case {"choice": choices}:
            return text in choices
    return re.fullmatch("(ab|cd)[0-9]{3}", text) is not None


@pytest.mark.parametrize(("temperature", "n"), [(0, 1), (1.5, 3)])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_every_completion_of_a_job_has_its_form(
    run_tiny: TinyRunner, form: dict[str, Any], temperature: float, n: int
) -> None:
    sampling = {"structured": form, "max_tokens": LONGEST, "temperature": temperature, "n": n, "seed": 1}
    result = run_tiny(prompts("one", "two"), model=context_model, sampling=sampling)
    assert result.error == ""
    assert result.column("finish_reason") == ["stop"] * 2 * n
    assert all(has_form(text or "", form) for text in result.completions)
    assert len(set(result.completions)) > (temperature > 0)


def test_rows_have_forms_of_their_own(run_tiny: TinyRunner) -> None:
    own = [{"structured": form} for form in FORMS]
    job: dict[str, Any] = {"model": context_model, "input": {"sampling": "own"}, "sampling": {"max_tokens": LONGEST}}
    lines = run_tiny([{"prompt": "x", "own": each} for each in own], **job)
    texts = run_tiny([{"prompt": "x", "own": json.dumps(each)} for each in own], **job)
    assert all(has_form(text or "", form) for text, form in zip(lines.completions, FORMS, strict=True))
    assert texts.completions == lines.completions


def test_a_row_with_a_form_replaces_that_of_the_job(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x", "own": {"structured": {"regex": "b"}}}, {"prompt": "x", "own": None}]
    sampling = {"structured": {"choice": ["a"]}}
    assert run_tiny(rows, input={"sampling": "own"}, sampling=sampling).completions == ["b", "a"]


def test_forms_in_a_struct_share_its_keys(run_tiny: TinyRunner) -> None:
    own = pa.array([
        {"structured": {"regex": "ab", "json_schema": None}}, {"structured": {"json_schema": '{"const": null}'}},
        {"structured": None}, {"structured": {"regex": "c"}},
    ])  # fmt: skip
    table = pa.table({"prompt": ["x"] * 4, "own": own})
    assert run_tiny(table, input={"sampling": "own"}).completions == ["ab", "null", "X", "c"]


def test_null_in_a_schema_is_a_value(run_tiny: TinyRunner) -> None:
    own: list[Any] = [{"structured": {"json_schema": {"const": None}}}]
    own.append(json.dumps(own[0]))
    rows = [{"prompt": "x", "own": each} for each in own]
    assert run_tiny(rows, input={"sampling": "own"}).completions == ["null", "null"]


BAD = {
    "structured.json_schema: Invalid type: objekt": {"json_schema": {"type": "objekt"}},
    "structured.json_schema: expected a JSON schema, which is an object": {"json_schema": "true"},
    "structured.json_schema: expected a JSON schema, written out or as JSON text; Expecting prop": {"json_schema": "{"},
    "structured.regex: at 1(8): invalid regex": {"regex": "("},
    "structured.grammar: at 1(8): unknown name": {"grammar": 'start: "a" b'},
    "structured.choice: expected at least one entry, got []": {"choice": []},
    "structured.choice[1]: expected text, got 2": {"choice": ["a", 2]},
    "structured: expected exactly one of json_schema, regex, choice, grammar; got none": {},
    "structured: expected exactly one of json_schema, regex, choice, grammar; got regex and choice": {
        "regex": "a",
        "choice": ["b"],
    },
    "structured.jsn_schema: unknown key; did you mean json_schema?": {"jsn_schema": "{}"},
}


def test_a_form_that_cannot_be_had_fails_its_row_alone(run_tiny: TinyRunner) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "x", "own": {"structured": form}} for form in BAD.values()]
    result = run_tiny([*rows, {"prompt": "x", "own": {"structured": {"regex": "a"}}}], input={"sampling": "own"})
    assert result.exit_code == 3
    assert result.completions == [None] * len(BAD) + ["a"]
    for number, (problem, error) in enumerate(zip(BAD, result.column("error"), strict=False), start=1):
        assert f'-in.jsonl line {number}: column "own": {problem}' in error


@pytest.mark.parametrize("problem", BAD)
def test_a_form_of_the_job_that_cannot_be_had_is_refused(
    run_tiny: TinyRunner, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchgen.job.generate.load_weights", None)  # it must not come so far
    result = run_tiny(prompts("x"), sampling={"structured": BAD[problem]})
    assert result.exit_code == 2
    assert f"sampling.{problem.replace('got []', 'got an empty list')}" in result.error


def test_plan_finds_bad_forms_too(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x", "own": {"structured": {"regex": text}}} for text in ("a", "(")]
    assert plan_job(load_job(run_tiny.write(rows, input={"sampling": "own"})), quiet=True).num_bad == 1


def test_a_row_at_its_limit_says_length(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("x"), model=context_model, sampling={"structured": {"json_schema": SCHEMA}})
    assert (result.column("finish_reason"), result.column("completion_tokens")) == (["length"], [8])
    assert (result.completions[0] or "").startswith('{"kind":')


def test_values_that_leave_no_token_fail_the_row(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("x"), sampling={"structured": {"regex": "ab"}, "bad_words": ["b"]})
    assert result.column("finish_reason") == ["error"]
    assert "no token can be sampled" in result.column("error")[0]


def test_the_resolved_job_gives_the_same_form_again(run_tiny: TinyRunner) -> None:
    for form in FORMS:
        result = run_tiny(prompts("x"), model=context_model, sampling={"structured": form, "max_tokens": LONGEST})
        assert result.resolved["sources"]["sampling.structured"] == "job"
        again = run_tiny(prompts("x"), model=context_model, sampling=result.resolved["job"]["sampling"])
        assert again.completions == result.completions
    assert run_tiny(prompts("x")).resolved["job"]["sampling"]["structured"] is None


def test_another_form_is_another_job(run_tiny: TinyRunner) -> None:
    file = run_tiny.write(prompts("x"), sampling={"structured": {"choice": ["a"]}})
    assert run_tiny.run_file(file).completions == ["a"]
    refused = run_tiny.run_file(file, ["sampling.structured.choice=[b]"])
    assert "sampling.structured: was" in refused.error
    assert run_tiny.run_file(file).completions == ["a"]


def test_any_way_of_running_gives_the_same_text(run_tiny: TinyRunner) -> None:
    texts = [f"{'once upon ' * 4}{tail}" for tail in ("a", "ab", "abc" * 9, "b", "zz" * 30)] + ["short"]
    own = [{"structured": FORMS[n % 5], "temperature": min(n, 1), "n": 1 + n % 3} for n in range(6)]
    rows = [{"id": n, "prompt": text, "own": own[n]} for n, text in enumerate(texts)]

    def run(rows: list[dict[str, Any]], **engine: Any) -> dict[tuple[int, int], str]:
        sampling = {**GREEDY, "seed": 5, "max_tokens": LONGEST}
        columns = {"id": "id", "sampling": "own"}
        result = run_tiny(rows, model=context_model, input=columns, sampling=sampling, engine=engine)
        assert result.exit_code == 0
        if "num_blocks" in engine:
            assert result.report["num_preemptions"] > 0
        return {(row["id"], row["sample_index"]): row["completion"] for row in result.rows}

    expected = run(rows)
    assert len(expected) == 12
    assert run(rows, max_num_seqs=1) == expected
    assert run(rows[::-1], max_num_seqs=3) == expected
    assert run(rows, block_size=4, num_blocks=48, expected_tokens=1) == expected


@pytest.mark.parametrize(
    ("way", "form", "completion"),
    [
        ("text", {"choice": [" cat", " a"]}, " cat"),
        ("text", {"choice": ["cat"]}, "cat"),
        ("text", {"regex": " ?cat"}, " cat"),
        ("prompt", {"choice": ["cat", "a"]}, "cat"),
        ("prompt", {"regex": " ?cat"}, "cat"),
    ],
)
def test_a_form_neither_needs_nor_loses_a_space(
    run_tiny: TinyRunner, way: str, form: dict[str, Any], completion: str
) -> None:
    """The model begins with the token of " cat", whose space is dropped at the beginning of a text only."""
    job: dict[str, Any] = {"model": cat_model, "tokenizer": drops_spaces, "generation_config": CATS}
    result = run_tiny(prompts("a"), **job, input={way: "prompt"}, sampling={"structured": form})
    assert (result.error, result.completions) == ("", [completion])


def test_draws_are_over_what_is_allowed(run_tiny: TinyRunner) -> None:
    sampling = {"structured": {"choice": ["a", "b", "c", "d"]}, "temperature": 1, "n": 400, "seed": 3}
    completions = run_tiny(prompts("x"), model=uniform_model, sampling=sampling).completions
    counts = [completions.count(letter) for letter in "abcd"]
    assert sum(counts) == 400
    assert sum((count - 100) ** 2 / 100 for count in counts) < 16.3  # chi-square, 3 degrees of freedom, p = 0.001


@pytest.mark.slow
def test_the_real_model_on_real_rows(tmp_path: Path) -> None:
    """Needs the embedded model (`python scripts/fetch_model.py`), as `scripts/test.sh` fetches it."""
    schema = {
        "type": "object",
        "properties": {
            "topic": {"enum": ["logic", "language", "arithmetic", "other"]},
            "difficulty": {"type": "integer", "minimum": 1, "maximum": 5},
            "answer": {"type": "string", "maxLength": 16},
        },
        "required": ["topic", "difficulty", "answer"],
        "additionalProperties": False,
    }
    overrides = [
        f"sampling.structured.json_schema='{json.dumps(schema)}'",
        "sampling.max_tokens=48",
        "input.limit=10",
        "input.system=null",
        f"output.path={tmp_path / 'out'}",
    ]
    jobs = Path(__file__).parents[2] / "jobs"
    report = run_job(load_job(jobs / "quickstart.yaml", overrides), quiet=True)
    rows = pq.read_table(tmp_path / "out/completions").to_pylist()
    assert (report.exit_code, len(rows)) == (0, 10)
    assert [row["finish_reason"] for row in rows] == ["stop"] * 10
    for row in rows:
        jsonschema.validate(json.loads(row["completion"]), schema)
    assert len({row["completion"] for row in rows}) > 3
