"""The text of completions: exactly what follows the prompt, up to a stop text, which may contain special tokens."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.end_to_end.harness import CATS, TinyRunner, cat_model, drops_spaces, prompts
from tests.tiny_models import EOS, IM_END, byte_tokenizer, script, table_model


def turns_model() -> LlamaForCausalLM:
    """After `>` it writes AB and ends its turn, then CD and ends."""
    return table_model({**script(">", "AB", end=IM_END), IM_END: ord("C"), ord("C"): ord("D"), ord("D"): EOS})


def without_end_token() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    return tokenizer


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
