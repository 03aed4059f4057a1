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
from tests.prompts.tokenizer_kinds import metaspace
from tests.tiny_models import (
    EOS,
    IM_END,
    TAIL,
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


def turns_model() -> LlamaForCausalLM:
    """After `>` it writes AB and ends its turn, then CD and ends."""
    return table_model({**script(">", "AB", end=IM_END), IM_END: ord("C"), ord("C"): ord("D"), ord("D"): EOS})


def without_end_token() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    return tokenizer


def larger_than_the_model() -> PreTrainedTokenizerFast:
    """The ids 261 to 265 are added tokens, the model has 264."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(f"<t{n}>", special=False, normalized=False) for n in range(5)])
    return tokenizer


def drops_spaces() -> PreTrainedTokenizerFast:
    """Its decoder drops the space of the first token."""
    tokenizer = metaspace("always")
    tokenizer.chat_template = TAIL
    return tokenizer


def cat_model() -> LlamaForCausalLM:
    """Answers any prompt of `drops_spaces` with the tokens of " cat", a comma and " yes", and ends."""
    ids = drops_spaces().get_vocab()
    words = [ids["\u2581cat"], ids[","], ids["\u2581yes,"], ids["<eos>"]]
    return table_model(dict.fromkeys(range(len(ids)), words[0]) | dict(itertools.pairwise(words)))


CATS = {"eos_token_id": [drops_spaces().get_vocab()["<eos>"]]}


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


SPECIAL_STOPS: list[tuple[dict[str, Any], str, int]] = [
    ({}, "ABCD", 6),
    ({"stop": ["<|im_end|>"]}, "AB", 3),
    ({"stop": ["x", "<|im_end|>"], "n": 2, "temperature": 1e-7}, "AB", 3),
    ({"stop": ["B<|im_end|>"]}, "A", 3),
    ({"stop": ["<|im_end|>C"]}, "AB", 4),
    ({"stop": ["D<eos>", "BCD"]}, "A", 5),  # the text as it is written is searched for the others
    ({"stop": ["D<eos>"]}, "ABC", 6),  # also where an end token of the model completes it
    ({"stop": ["<|im_end|>", "B"]}, "A", 2),
    ({"stop": ["<|im_end|>"], "skip_special_tokens": False}, "AB", 3),
    ({"stop": ["B<|im_end|>"], "skip_special_tokens": False}, "A", 3),
    ({"stop": ["B<|im_end|>"], "min_tokens": 4}, "ABCD", 6),  # complete too early
    ({"stop": ["<|im_end|>"], "ignore_eos": True}, "AB", 3),
]


@pytest.mark.parametrize(("sampling", "completion", "num_tokens"), SPECIAL_STOPS)
def test_special_tokens_are_stop_texts(
    run_tiny: TinyRunner, sampling: dict[str, Any], completion: str, num_tokens: int
) -> None:
    result = run_tiny(prompts("x>"), model=turns_model, tokenizer=without_end_token, sampling=sampling)
    num_samples = sampling.get("n", 1)
    assert (result.error, result.completions) == ("", [completion] * num_samples)
    assert result.column("finish_reason") == ["stop"] * num_samples
    assert result.column("completion_tokens") == [num_tokens] * num_samples


def test_special_tokens_are_stop_texts_of_single_rows(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x>", "own": sampling} for sampling, _, _ in SPECIAL_STOPS]
    result = run_tiny(rows, model=turns_model, tokenizer=without_end_token, input={"sampling": "own"})
    assert result.completions == [each for own, each, _ in SPECIAL_STOPS for _ in range(own.get("n", 1))]


def test_a_special_stop_text_is_forbidden_below_min_tokens(run_tiny: TinyRunner) -> None:
    model: dict[str, Any] = {"model": turns_model, "tokenizer": without_end_token}
    sampling = {"stop": "<|im_end|>", "min_tokens": 4, "max_tokens": 4, "skip_special_tokens": False}
    result = run_tiny(prompts("x>"), **model, sampling=sampling)
    assert (result.completions, result.column("finish_reason")) == (["AB\0\0"], ["length"])


def test_a_row_replaces_the_special_stop_texts_of_the_job(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x>", "own": {"stop": own}} for own in (["D"], [], ["A<|im_end|>", "B"], None)]
    job: dict[str, Any] = {"model": turns_model, "tokenizer": without_end_token, "input": {"sampling": "own"}}
    result = run_tiny(rows, **job, sampling={"stop": ["<|im_end|>"]})
    assert result.completions == ["ABC", "ABCD", "A", "AB"]


def test_a_form_may_end_with_a_special_stop_text(run_tiny: TinyRunner) -> None:
    sampling = {"stop": ["<|im_end|>"], "structured": {"regex": "AB[A-Z]*"}}
    result = run_tiny(prompts("x>"), model=turns_model, tokenizer=without_end_token, sampling=sampling)
    assert (result.completions, result.column("completion_tokens")) == (["AB"], [3])


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


@pytest.mark.parametrize(("way", "completion"), [("text", " cat, yes,"), ("prompt", "cat, yes,")])
def test_a_completion_is_the_text_that_follows_its_prompt(run_tiny: TinyRunner, way: str, completion: str) -> None:
    """A chat's answer is a text of its own, which begins without the space of its first token."""
    job: dict[str, Any] = {"model": cat_model, "tokenizer": drops_spaces, "generation_config": CATS}
    result = run_tiny(prompts("a"), **job, input={way: "prompt"}, sampling={"logprobs": 2})
    assert result.completions == [completion]
    assert "".join(token["token"] for token in result.column("logprobs")[0]) == f"{completion} <eos>".replace(" <", "<")
    assert {token["token"] for token in result.column("logprobs")[0][0]["top"]} >= {completion.split(",")[0]}


def test_token_ids_are_followed_by_their_text_in_every_sample(run_tiny: TinyRunner) -> None:
    ids = drops_spaces().get_vocab()
    rows = [{"ids": [ids["<bos>"], ids["\u2581a"]]}, {"ids": [ids["<bos>"]]}]
    job: dict[str, Any] = {"model": cat_model, "tokenizer": drops_spaces, "generation_config": CATS}
    result = run_tiny(rows, **job, input={"token_ids": "ids"}, sampling={"n": 2, "temperature": 1e-7})
    assert result.completions == [" cat, yes,"] * 2 + ["cat, yes,"] * 2


@pytest.mark.parametrize(
    ("way", "stop", "completion"),
    [("text", " c", ""), ("text", ", y", " cat"), ("prompt", " c", "cat, yes,"), ("prompt", "c", "")],
)
def test_stop_strings_are_found_in_the_text_that_is_written(
    run_tiny: TinyRunner, way: str, stop: str, completion: str
) -> None:
    job: dict[str, Any] = {"model": cat_model, "tokenizer": drops_spaces, "generation_config": CATS}
    assert run_tiny(prompts("a"), **job, input={way: "prompt"}, sampling={"stop": stop}).completions == [completion]


def test_a_completion_begins_with_the_character_in_which_its_prompt_ends(run_tiny: TinyRunner) -> None:
    """The table model knows the last byte only, so the first of three bytes stands at the prompt's end."""

    def model() -> LlamaForCausalLM:
        return table_model(dict(itertools.pairwise([*"\u65e5!".encode(), EOS])))

    rows = [{"ids": [*b"a", *"\u65e5".encode()[:n]]} for n in (1, 2, 3)]
    result = run_tiny(rows, model=model, input={"token_ids": "ids"})
    assert result.completions == ["\u65e5!", "\u65e5!", "!"]


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
