"""How tokens are chosen: the values a job gives, the model's own ones, seeds, stops, ids the tokenizer lacks."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.end_to_end.harness import Result, TinyRunner, prompts
from tests.tiny_models import (
    EOS,
    byte_tokenizer,
    context_model,
    script,
    table_model,
    uniform_model,
    upper_table,
)

SAMPLING = {"do_sample": True, "temperature": 0.9}
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcd"
# A longer shared prefix, different lengths, and rows that are the beginning of others
TEXTS = [f"{'once upon a time ' * 3}{tail}" for tail in ("a", "ab", "abc" * 9, "b", "", "zz" * 40)] + ["short"]


def nearly_uniform_model() -> LlamaForCausalLM:
    """As `uniform_model`, but `z` is a little likelier, so greedy gives z and sampling gives noise."""
    model = uniform_model()
    with torch.no_grad():
        model.lm_head.weight[ord("z")] = 0.02
    return model


def digits_model() -> LlamaForCausalLM:
    return table_model(script(">", DIGITS))


def stop_model() -> LlamaForCausalLM:
    return table_model(script(">", "aNb;cd"))


def padded_vocab_model() -> LlamaForCausalLM:
    """After `>` its best id is 262, which the tokenizer lacks; `k` is the second best."""
    return table_model({**upper_table(), ord(">"): [262, ord("k")], ord("k"): EOS})


def larger_than_the_model() -> PreTrainedTokenizerFast:
    """The ids 261 to 265 are added tokens, the model has 264."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(f"<t{n}>", special=False, normalized=False) for n in range(5)])
    return tokenizer


def test_temperature_0_of_the_job_is_not_the_models_0_9(run_tiny: TinyRunner) -> None:
    def run(**job: Any) -> list[str | None]:
        return run_tiny(prompts("x"), model=nearly_uniform_model, generation_config=SAMPLING, **job).completions

    assert run(sampling="{temperature: 0, max_tokens: 8}") == ["z" * 8]
    assert run(sampling="{temperature: 0, max_tokens: 8}") == ["z" * 8]
    assert run(sampling="{max_tokens: 8}") != ["z" * 8]


def test_seed_0_is_a_seed(run_tiny: TinyRunner) -> None:
    def run(sampling: str) -> Result:
        return run_tiny(prompts("x", "x"), model=uniform_model, sampling=sampling)

    seeded = [run("{temperature: 1, max_tokens: 16, seed: 0}") for _ in range(2)]
    free = [run("{temperature: 1, max_tokens: 16}") for _ in range(2)]
    assert seeded[0].completions == seeded[1].completions
    assert len({str(result.completions) for result in (seeded[0], *free)}) == 3
    assert seeded[0].resolved["job"]["sampling"]["seed"] == 0
    assert run(
        f"{{temperature: 1, max_tokens: 16, seed: {free[0].resolved['job']['sampling']['seed']}}}"
    ).completions == (free[0].completions)


def test_numbers_in_exponent_form_are_used_as_written(run_tiny: TinyRunner) -> None:
    sampling = run_tiny(prompts("note a"), sampling="{temperature: 1e-5, top_p: 1e0}").resolved["job"]["sampling"]
    assert (sampling["temperature"], sampling["top_p"]) == (0.00001, 1.0)


def test_without_a_limit_a_completion_goes_to_its_end(run_tiny: TinyRunner) -> None:
    values = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 16, "max_length": 20}
    result = run_tiny(prompts("x>"), model=digits_model, generation_config=values, sampling="{}")
    assert (result.completions, result.column("finish_reason")) == ([DIGITS], ["stop"])
    job, sources = result.resolved["job"]["sampling"], result.resolved["sources"]
    expected = {"temperature": (0.6, "model"), "top_p": (0.9, "model"), "max_tokens": (None, "default")}
    assert {name: (job[name], sources[f"sampling.{name}"]) for name in expected} == expected


def test_value_of_the_job_has_the_job_as_its_source(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("x>"), model=digits_model, generation_config=SAMPLING, sampling="{temperature: 0}")
    assert result.completions == [DIGITS]
    assert result.resolved["job"]["sampling"]["temperature"] == 0
    assert result.resolved["sources"]["sampling.temperature"] == "job"


def test_end_tokens_are_recorded_with_their_source(run_tiny: TinyRunner) -> None:
    values = {"eos_token_id": [EOS, ord("d")]}
    result = run_tiny(prompts("x>"), model=digits_model, generation_config=values)
    recorded = {key: source for key, source in result.resolved["sources"].items() if "eos_token_id" in key}
    assert list(recorded.values()) == ["model"]


def test_missing_limit_is_announced(run_tiny: TinyRunner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "batchgen")
    run_tiny(prompts("x>"), model=digits_model, sampling="{temperature: 0}")
    assert "max_tokens is not set" in caplog.text
    assert "512" in caplog.text


def test_end_tokens_of_config_and_generation_config_both_end(run_tiny: TinyRunner) -> None:
    """Z is the one that generation_config adds; J goes to the end token of config.json."""
    values = {"eos_token_id": [ord("Z")]}
    result = run_tiny(prompts("note z", "note j"), generation_config=values)
    assert result.column("finish_reason") == ["stop", "stop"]
    assert result.column("completion_tokens") == [1, 2]


def test_ignore_eos_runs_to_the_limit(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("note a"), sampling={"ignore_eos": True, "max_tokens": 5})
    assert (result.column("finish_reason"), result.column("completion_tokens")) == (["length"], [5])


@pytest.mark.parametrize(
    ("stop", "completion"),
    [("END", "aNb;cd"), ('[no, "b;"]', "aN"), ("[]", "aNb;cd"), ("", "aNb;cd"), ('["Nb", "b;c"]', "a")],
)
def test_stop_is_text_or_a_list_of_texts(run_tiny: TinyRunner, stop: str, completion: str) -> None:
    result = run_tiny(prompts("x>"), model=stop_model, sampling=f"\n  temperature: 0\n  stop: {stop}")
    assert (result.completions, result.column("finish_reason")) == ([completion], ["stop"])


def test_literal_backslash_n_is_warned_of(run_tiny: TinyRunner, caplog: pytest.LogCaptureFixture) -> None:
    result = run_tiny(prompts("x>"), model=stop_model, sampling="{temperature: 0, stop: '\\n'}")
    assert result.completions == ["aNb;cd"]
    assert [record.levelname for record in caplog.records if "sampling.stop" in record.message] == ["WARNING"]


@pytest.mark.parametrize(("stop", "named"), [('""', "sampling.stop"), ("[1]", "sampling.stop[0]")])
def test_stop_that_is_no_text_is_refused(run_tiny: TinyRunner, stop: str, named: str) -> None:
    result = run_tiny(prompts("x>"), model=stop_model, sampling=f"{{temperature: 0, stop: {stop}}}")
    assert result.exit_code == 2
    assert named in result.error


LACKING: dict[str, dict[str, Any]] = {
    "logit_bias: '<t4>' has token 265": {"logit_bias": {"<t4>": 5}},
    "logit_bias: 265 is no token id": {"logit_bias": {"265": 5}},
    "bad_words[1]: '<t4>' has token 265": {"bad_words": ["a", "<t4>"]},
    "stop_token_ids[0]: 265 is no token id": {"stop_token_ids": [265]},
    "structured.choice: '<t4>' has token 265": {"structured": {"choice": ["<t4>"]}},
    "structured.regex: 'a<t4>+' has token 265": {"structured": {"regex": "a<t4>+"}},
    "structured.json_schema: 'x<t4>' has token 265": {"structured": {"json_schema": {"enum": [1, "x<t4>"]}}},
}


@pytest.mark.parametrize("problem", LACKING)
def test_tokens_that_the_model_lacks_are_refused_by_name(run_tiny: TinyRunner, problem: str) -> None:
    result = run_tiny(prompts("note a"), tokenizer=larger_than_the_model, sampling=LACKING[problem])
    assert result.exit_code == 2
    assert f"sampling.{problem}" in result.error
    assert "from 0 to 263" in result.error


def test_tokens_that_the_model_lacks_fail_their_rows_alone(run_tiny: TinyRunner) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "note b", "own": own} for own in LACKING.values()]
    rows += [{"prompt": "<t4> note c"}, {"prompt": "<t2> note d"}]
    rows += [{"prompt": "note e", "own": {"structured": {"choice": ["EF", "EG"]}, "bad_words": ["<t2>"]}}]
    result = run_tiny(rows, tokenizer=larger_than_the_model, input={"sampling": "own"})
    assert result.exit_code == 3
    assert result.completions == [None] * (len(LACKING) + 1) + ["D", "EF"]
    errors = result.column("error")
    for error, problem in zip(errors, LACKING, strict=False):
        assert f'column "own": {problem}' in error
    assert "is 265; the model's ids go from 0 to 263, 264 in all" in errors[len(LACKING)]


def test_a_special_stop_text_that_the_model_lacks_is_refused(run_tiny: TinyRunner) -> None:
    def tokenizer() -> PreTrainedTokenizerFast:
        made = larger_than_the_model()
        made.add_special_tokens({"additional_special_tokens": ["<far>"]})
        return made

    result = run_tiny(prompts("note a"), tokenizer=tokenizer, sampling={"stop": ["x", "<far>"]})
    assert (result.exit_code, "sampling.stop[1]: '<far>' has token 266" in result.error) == (2, True)


def test_end_tokens_that_the_model_lacks_do_no_harm(run_tiny: TinyRunner) -> None:
    sampling = {"min_tokens": 1, "structured": {"regex": "A+"}, "max_tokens": 3}
    generation_config = {"eos_token_id": [EOS, 265, 9999]}
    result = run_tiny(prompts("note a"), generation_config=generation_config, sampling=sampling)
    assert (result.error, result.completions) == ("", ["A"])


@pytest.mark.parametrize("temperature", [0, 0.5])
def test_id_that_the_tokenizer_lacks_is_never_chosen(run_tiny: TinyRunner, temperature: float) -> None:
    result = run_tiny(
        prompts("note a", "x>", "note b"), model=padded_vocab_model, sampling={"temperature": temperature}
    )
    assert (result.exit_code, result.completions) == (0, ["A", "k", "B"])


def test_draws_do_not_depend_on_how_the_job_is_run(run_tiny: TinyRunner) -> None:
    """Neither on the batch, the order of the work or of the input, the block size, nor on what was cached."""
    rows = [{"id": f"row {n}", "prompt": text} for n, text in enumerate(TEXTS)]

    def run(rows: list[dict[str, Any]], **engine: Any) -> dict[str, str]:
        result = run_tiny(
            rows,
            model=context_model,
            input={"id": "id"},
            sampling={"temperature": 1, "seed": 5, "max_tokens": 12},
            engine=engine,
        )
        assert result.exit_code == 0
        return dict(zip(result.column("id"), result.column("completion"), strict=True))

    expected = run(rows)
    assert len(set(expected.values())) == len(rows)
    for max_num_seqs, order in itertools.product((1, 8), ("prefix", "input")):
        assert run(rows, max_num_seqs=max_num_seqs, order=order) == expected
    assert run(rows[::-1], max_num_seqs=1) == expected
    assert run(rows[::-1]) == expected
    assert run(rows, prefix_cache=False) == expected
    assert run(rows, block_size=8, max_batched_tokens=7) == expected


def test_another_seed_gives_other_draws(run_tiny: TinyRunner) -> None:
    def run(seed: int) -> list[str | None]:
        sampling = {"temperature": 1, "seed": seed}
        return run_tiny(prompts("x"), model=context_model, sampling=sampling).completions

    assert run(1) != run(2)
