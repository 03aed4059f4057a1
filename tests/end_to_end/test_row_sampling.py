"""Sampling values of single rows (`input.sampling`), and the columns that only some jobs have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.job.plan_job import plan_job
from batchgen.spec.load import load_job
from tests.end_to_end.harness import GREEDY, TinyRunner
from tests.end_to_end.interrupted import Stop, stop_after
from tests.tiny_models import EOS, context_model, script, table_model, uniform_model

FULL = "aNb;cd"
OVERRIDES: list[dict[str, Any] | None] = [
    None,
    {"max_tokens": 2},
    {"stop": ["b;"]},
    {"min_tokens": 5, "stop": "N", "max_tokens": 7},
    {"bad_words": ["N"], "logit_bias": {"Z": 5.0}, "max_tokens": 2},
    {"n": 2, "max_tokens": 1, "temperature": 0.1},
]


def script_model() -> Any:
    return table_model(script(">", FULL))


def as_struct(overrides: Sequence[Mapping[str, Any] | None]) -> pa.Array:
    """One struct type for all rows, so that a key that a row does not give is null."""
    return pa.array(overrides, pa.struct({
        "temperature": pa.float64(), "max_tokens": pa.int64(), "min_tokens": pa.int64(), "n": pa.int32(),
        "stop": pa.list_(pa.string()),
        "bad_words": pa.list_(pa.string()), "logit_bias": pa.struct({"Z": pa.float64(), "65": pa.float64()}),
    }))  # fmt: skip


def rows_of(kind: str) -> Any:
    prompts = ["x>"] * len(OVERRIDES)
    values: Any = OVERRIDES
    if kind == "struct":
        lists = [o and {**o, **({"stop": [o["stop"]]} if isinstance(o.get("stop"), str) else {})} for o in OVERRIDES]
        return pa.table({"prompt": prompts, "own": as_struct(lists)})
    if kind == "json in parquet":
        return pa.table({"prompt": prompts, "own": [v if v is None else json.dumps(v) for v in values]})
    if kind == "json in lines":
        values = [json.dumps(value) for value in values]
    return [{"prompt": prompt, "own": value} for prompt, value in zip(prompts, values, strict=True)]


@pytest.mark.parametrize("kind", ["struct", "json in parquet", "json in lines", "object in lines"])
def test_rows_have_their_own_values(run_tiny: TinyRunner, kind: str) -> None:
    result = run_tiny(rows_of(kind), model=script_model, input={"sampling": "own"})
    assert (result.error, result.exit_code) == ("", 0)
    assert result.completions == [FULL, "aN", "aN", FULL, "aZ", "a", "a"]
    assert result.column("finish_reason") == ["stop", "length", "stop", "stop", "length", "length", "length"]
    assert result.column("sample_index") == [0, 0, 0, 0, 0, 0, 1]


BAD = {
    "temperature: expected at least 0, got -1": {"temperature": -1},
    "temprature: unknown key; did you mean temperature?": {"temprature": 1},
    "top_k: expected a whole number, got 2.5": {"top_k": 2.5},
    "n: expected at least 1, got 0": {"n": 0},
    "top_k: expected at least 0, got -1; 0 turns it off": {"top_k": -1},
    "n: 2 samples at temperature 0 would all be the same; set a temperature above 0, or n to 1": {"n": 2},
    "min_tokens: 9 is more than max_tokens, which is 8": {"min_tokens": 9},
    "stop[0]: expected some text, got ''": {"stop": [""]},
    "stop_token_ids[1]: 900 is no token id; the model's go from 0 to 263": {"stop_token_ids": [1, 900]},
    "logit_bias: 'ab' is not one token of the model; give token ids, or use bad_words": {"logit_bias": {"ab": 1}},
    "logit_bias: 264 is no token id; the model's go from 0 to 263": {"logit_bias": {"264": 1}},
    "logit_bias.7: expected at most 100, got 101": {"logit_bias": {"7": 101}},
    "expected keys of `sampling` with values, found a list": [1],
    "not valid JSON at column 1: Expecting value": "oops",
}


def test_a_bad_value_is_a_bad_row(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x>", "own": value} for value in BAD.values()] + [{"prompt": "x>"}]
    result = run_tiny(rows, model=script_model, input={"sampling": "own"})
    assert result.exit_code == 3
    *errors, last = result.column("error")
    assert result.completions == [None] * len(BAD) + [FULL]
    assert last is None
    for line, (error, expected) in enumerate(zip(errors, BAD, strict=True), start=1):
        assert error.startswith("job-1-in.jsonl line ")
        assert f"line {line}: " in error
        assert '"own"' in error
        assert error.endswith(expected)


def test_a_row_with_a_bad_value_leaves_the_prompts_of_the_others_alone(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": f"note {c}", "own": {"top_p": 5} if c in "bd" else {}, "id": c} for c in "abcde"]
    result = run_tiny(rows, input={"sampling": "own", "id": "id"})
    assert result.completions == ["A", None, "C", None, "E"]
    assert result.column("prompt_tokens")[1] == result.column("prompt_tokens")[0]


def test_a_column_that_is_not_there_or_holds_numbers_is_refused(run_tiny: TinyRunner) -> None:
    table = pa.table({"prompt": ["x>"], "own": [1]})
    assert "input.sampling needs a struct" in run_tiny(table, input={"sampling": "own"}).error
    assert "no column 'owm' (input.sampling)" in run_tiny(table, input={"sampling": "owm"}).error
    assert "no column 'owm'" in run_tiny([{"prompt": "x>", "own": {}}], input={"sampling": "owm"}).error


@pytest.mark.parametrize("id_column", [None, "id"])
def test_a_seed_of_a_row_is_as_good_as_the_jobs(run_tiny: TinyRunner, id_column: str | None) -> None:
    def run(seed: int, own: Mapping[str, Any] | None) -> list[str | None]:
        rows = [{"prompt": "x", "id": n, "own": own} for n in ("a", "b", "a")]
        sampling = {"temperature": 1, "seed": seed}
        columns = {"sampling": "own"} | ({"id": id_column} if id_column else {})
        return run_tiny(rows, model=uniform_model, sampling=sampling, input=columns).completions

    assert run(1, {"seed": 2}) == run(2, None) == run(2, {"seed": None})
    assert run(1, None) != run(2, None)
    assert len(set(run(1, {"seed": 2}))) == 3


def test_token_ids_take_values_of_their_own_too(run_tiny: TinyRunner) -> None:
    table = pa.table({"ids": [[ord(">")]] * 3, "own": ['{"max_tokens": 1}', None, '{"top_p": 0}']})
    result = run_tiny(table, model=script_model, input={"token_ids": "ids", "sampling": "own"})
    assert result.completions == ["a", FULL, None]


def test_plan_knows_the_limits_of_rows(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x>", "own": {"max_tokens": 3, "n": 2, "temperature": 1}}]
    rows += [{"prompt": "y>", "own": {"top_k": -1}}, {"prompt": "z"}]
    file = run_tiny.write(rows, input={"sampling": "own"}, sampling={"max_tokens": 20})
    plan = plan_job(load_job(file), quiet=True)
    assert plan.time.num_output_tokens == 2 * 3 + 20
    assert (plan.num_rows, plan.num_bad, plan.num_samples) == (3, 1, 3)


def test_changed_values_of_a_row_are_another_job(run_tiny: TinyRunner) -> None:
    file = run_tiny.write([{"prompt": "x>", "own": {"max_tokens": 3}}], model=script_model, input={"sampling": "own"})
    assert run_tiny.run_file(file).completions == ["aNb"]
    source = file.with_name(f"{file.stem}-in.jsonl")
    source.write_text(source.read_text().replace("3", "4"))
    refused = run_tiny.run_file(file)
    assert refused.exit_code == 2
    assert "input file 1" in refused.error


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_columns_on_request(run_tiny: TinyRunner, format: str) -> None:
    result = run_tiny(
        [{"prompt": "x>", "own": {"prompt_logprobs": 1}}, {"prompt": "x;"}],
        model=script_model,
        input={"sampling": "own"},
        sampling={"logprobs": 2},
        output={"format": format, "token_ids": True},
    )
    (part,) = (result.folder / "completions").iterdir()
    if format == "parquet":
        table = pq.read_table(part)
        token = [pa.field("token_id", pa.int32()), pa.field("token", pa.string()), pa.field("logprob", pa.float32())]
        lists = pa.list_(pa.struct([*token, ("rank", pa.int32()), ("top", pa.list_(pa.struct(token)))]))
        types = [pa.list_(pa.int32()), lists, lists]
        assert [table.schema.field(name).type for name in table.column_names[-3:]] == types
        rows = table.to_pylist()
    else:
        rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert list(rows[0])[-3:] == ["completion_token_ids", "logprobs", "prompt_logprobs"]
    assert rows[0]["completion_token_ids"] == [*FULL.encode(), EOS]
    assert rows[1]["completion_token_ids"] == [*b"cd", EOS]
    last = rows[1]["logprobs"][-1]
    assert (last["token_id"], last["token"], last["rank"], len(last["top"])) == (EOS, "<eos>", 1, 2)
    assert last["top"][0] == {"token_id": EOS, "token": "<eos>", "logprob": last["logprob"]}
    assert rows[1]["prompt_logprobs"] is None
    first, *others = rows[0]["prompt_logprobs"]
    assert len(others) == rows[0]["prompt_tokens"] - 1
    assert (first["logprob"], first["rank"], first["top"]) == (None, None, None)
    assert [others[-1]["token"], len(others[-1]["top"])] == [">", 1]


def test_columns_are_not_there_unless_asked_for(run_tiny: TinyRunner) -> None:
    assert not {"logprobs", "prompt_logprobs", "completion_token_ids"} & set(
        run_tiny([{"prompt": "x>"}], model=script_model).table.column_names
    )


def test_special_tokens_are_text_where_they_are_not_skipped(run_tiny: TinyRunner) -> None:
    def model() -> Any:
        return table_model({ord(">"): ord("a"), ord("a"): 259, 259: ord("b"), ord("b"): EOS})

    def run(**sampling: Any) -> list[str | None]:
        return run_tiny([{"prompt": "x>"}], model=model, sampling=sampling).completions

    assert run() == ["ab"]
    assert run(skip_special_tokens=False) == ["a<|im_start|>b"]
    assert run(skip_special_tokens=False, stop="start") == ["a<|im_"]
    assert run(stop="start") == ["ab"]


def test_the_models_repetition_penalty_counts_without_sampling(run_tiny: TinyRunner) -> None:
    result = run_tiny([{"prompt": "x>"}], model=script_model, generation_config={"repetition_penalty": 1.2})
    assert result.resolved["job"]["sampling"]["repetition_penalty"] == 1.2
    assert result.resolved["sources"]["sampling.repetition_penalty"] == "model"


def test_unusable_words_of_the_job_are_refused(run_tiny: TinyRunner) -> None:
    result = run_tiny([{"prompt": "x>"}], sampling={"logit_bias": {"ab": 1}})
    assert result.exit_code == 2
    assert "sampling.logit_bias: 'ab' is not one token" in result.error


def test_any_way_of_running_gives_the_same_tokens_and_logprobs(run_tiny: TinyRunner, tmp_path: Path) -> None:
    texts = [f"{'once upon ' * 4}{tail}" for tail in ("a", "ab", "abc" * 9, "b", "zz" * 30)] + ["short"]
    own: list[dict[str, Any]] = [
        {"temperature": 0}, {"repetition_penalty": 1.3}, {"top_p": 0.8, "seed": 3},
        {"presence_penalty": 1, "bad_words": ["a"]}, {"prompt_logprobs": 0, "n": 2}, {"top_k": 5, "min_tokens": 4},
    ]  # fmt: skip
    rows = [{"id": n, "prompt": text, "own": own[n]} for n, text in enumerate(texts)]

    def run(rows: list[dict[str, Any]], **engine: Any) -> dict[tuple[int, int], Any]:
        result = run_tiny(
            rows,
            model=context_model,
            input={"id": "id", "sampling": "own"},
            sampling={**GREEDY, "temperature": 1, "seed": 5, "logprobs": 1},
            engine=engine,
        )
        assert result.exit_code == 0
        return {(row["id"], row["sample_index"]): row for row in result.rows}

    def assert_equal(found: dict[tuple[int, int], Any], expected: dict[tuple[int, int], Any]) -> None:
        assert found.keys() == expected.keys()
        for key, row in expected.items():
            assert found[key]["completion"] == row["completion"]
            for name in ("logprobs", "prompt_logprobs"):
                values = [[token["logprob"] for token in each[name] or []] for each in (found[key], row)]
                assert values[0] == pytest.approx(values[1], abs=1e-4)

    expected = run(rows)
    assert len({row["completion"] for row in expected.values()}) == len(expected) == 7
    assert_equal(run(rows, max_num_seqs=1), expected)
    assert_equal(run(rows, max_num_seqs=3, order="input"), expected)
    assert_equal(run(rows[::-1], max_num_seqs=8), expected)
    assert_equal(run(rows, prefix_cache=False, block_size=8, max_batched_tokens=7), expected)
    assert_equal(run(rows, block_size=4, num_blocks=32, expected_tokens=1), expected)


def test_a_resumed_run_draws_and_scores_as_an_unbroken_one(
    run_tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [{"n": 2}, {"seed": 9}, {"repetition_penalty": 1.2}, None, {"prompt_logprobs": 1}, {"top_p": 5}, {"top_k": 3}]
    rows = [{"prompt": f"row {n}", "own": value} for n, value in enumerate(own)]
    job: dict[str, Any] = {
        "model": context_model,
        "input": {"sampling": "own"},
        "sampling": {"temperature": 1, "seed": 4, "logprobs": 0},
        "engine": {"max_num_seqs": 1},
    }
    expected = run_tiny(rows, **job)
    job_file = run_tiny.write(rows, **job)
    stop_after(monkeypatch, 4)
    with pytest.raises(Stop):
        run_tiny.run_file(job_file)
    stop_after(monkeypatch, None)
    result = run_tiny.run_file(job_file)
    assert result.report["num_resumed_rows"] >= 2
    assert [row["completion"] for row in result.rows] == [row["completion"] for row in expected.rows]
    for found, row in zip(result.rows, expected.rows, strict=True):
        values = [[token["logprob"] for token in each["logprobs"] or []] for each in (found, row)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
        assert (found["prompt_logprobs"] is None) == (row["prompt_logprobs"] is None)
