"""What ends a completion: end tokens, stop tokens, stop strings, min_tokens, max_tokens and the context, together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from batchgen.engine.request import Request, RequestStatus, SampledToken
from batchgen.engine.sampler import Sampler
from batchgen.prompts.detokenize import Detokenizer, StopStringMatcher
from batchgen.prompts.grammar import GrammarCompiler
from batchgen.sampling_params import SamplingParams, Structured
from batchgen_kernels import ReferenceBackend
from tests.tiny_models import EOS, VOCAB_SIZE, byte_tokenizer

OTHER_END, STOP_TOKEN = ord("]"), ord(";")
DETOKENIZER = Detokenizer(byte_tokenizer())
GRAMMARS = GrammarCompiler(byte_tokenizer(), VOCAB_SIZE)


def complete(wanted: Sequence[int], max_tokens: int, **params: Any) -> Request:
    """A completion by a model that wants these tokens one after the other, and what comes next in the alphabet else."""
    params["stop_token_ids"] = frozenset(params.get("stop_token_ids", ()))
    given = SamplingParams(**params)
    ends = given.stop_token_ids | (frozenset() if given.ignore_eos else frozenset({EOS, OTHER_END}))
    request = Request(
        0,
        np.array([1], np.int32),
        given,
        0,
        max_tokens=max_tokens,
        end_token_ids=ends,
        stop_condition=StopStringMatcher(DETOKENIZER, given.stop, given.min_tokens) if given.stop else None,
        constraint=GRAMMARS.constraint(given.structured, ends) if given.structured else None,
    )
    sampler = Sampler(torch.tensor([VOCAB_SIZE - 1]), ReferenceBackend())
    for token in wanted:
        logits = torch.zeros(1, VOCAB_SIZE)
        logits[0, ord("x")] = 1.0
        logits[0, token] = 2.0
        (outcome,) = sampler.sample(logits, [request], None).outcomes()
        assert isinstance(outcome, SampledToken)
        request.append(outcome)
        if request.status is RequestStatus.FINISHED:
            return request
    raise AssertionError("the completion has not ended")


def ids(text: str) -> list[int]:
    """`$` is the end token."""
    return [EOS if char == "$" else ord(char) for char in text]


def regex(text: str) -> dict[str, Any]:
    return {"structured": Structured("regex", text)}


@pytest.mark.parametrize(
    ("wanted", "max_tokens", "params", "expected", "reason"),
    [
        ("ab$", 9, {}, "ab$", "stop"),
        ("ab]", 9, {}, "ab]", "stop"),  # any of the model's end tokens
        ("ab;", 9, {"stop_token_ids": [STOP_TOKEN]}, "ab;", "stop"),
        ("a;b$", 9, {}, "a;b$", "stop"),
        ("a$b]cd", 6, {"ignore_eos": True}, "a$b]cd", "length"),
        ("a$b;", 9, {"ignore_eos": True, "stop_token_ids": [STOP_TOKEN]}, "a$b;", "stop"),
        ("abc", 3, {}, "abc", "length"),
        ("ab$", 3, {}, "ab$", "stop"),  # an end token as the last one that may come
        ("$$$$", 9, {"min_tokens": 3}, "xxx$", "stop"),  # the second best stands in for what cannot be sampled
        ("]];;", 9, {"min_tokens": 3, "stop_token_ids": [STOP_TOKEN]}, "xxx;", "stop"),
        ("$$$", 3, {"min_tokens": 5}, "xxx", "length"),  # the limit counts below min_tokens too
        ("a$", 9, {"min_tokens": 1}, "a$", "stop"),
        ("a$b]", 4, {"ignore_eos": True, "min_tokens": 3}, "a$b]", "length"),
        ("abab", 9, {"stop": ("b",)}, "ab", "stop"),
        ("abab", 9, {"stop": ("b",), "min_tokens": 2}, "ab", "stop"),  # completed with the second token
        ("abab", 9, {"stop": ("b",), "min_tokens": 3}, "abab", "stop"),
        ("abcab", 9, {"stop": ("bc",), "min_tokens": 3}, "abc", "stop"),  # begun before, completed in time
        ("abcabc", 9, {"stop": ("bc",), "min_tokens": 4}, "abcabc", "stop"),
        ("abc", 3, {"stop": ("bc",), "min_tokens": 4}, "abc", "length"),
        ("abc", 3, {"stop": ("bc",)}, "abc", "stop"),  # a stop string at the limit
        ("zzz", 9, regex("ax"), "ax", "stop"),  # nothing can follow, so no end token is waited for
        ("zzz", 2, regex("ax"), "ax", "stop"),  # complete at the limit
        ("zzz", 2, regex("axb"), "ax", "length"),
        ("$$$", 9, regex("ax*"), "a$", "stop"),  # an end token only where the grammar may end
        ("aaa", 3, regex("ax*"), "axx", "length"),
        ("$$$$", 9, regex("ax*") | {"min_tokens": 3}, "axx$", "stop"),
        ("$$$$", 9, regex("ax") | {"min_tokens": 4}, "ax", "stop"),  # a complete text ends below min_tokens too
        ("$$$$", 4, regex("ax*") | {"ignore_eos": True}, "axxx", "length"),
        ("$$$$", 9, regex("ax") | {"ignore_eos": True}, "ax", "stop"),
        (";b;;", 9, regex("[ab;]{3,}") | {"stop_token_ids": [STOP_TOKEN]}, "aba;", "stop"),
        ("abcd", 9, regex("[a-d]+") | {"stop": ("bc",)}, "abc", "stop"),
    ],
)
def test_what_ends_a_completion(
    wanted: str, max_tokens: int, params: dict[str, Any], expected: str, reason: str
) -> None:
    done = complete(ids(wanted), max_tokens, **params)
    assert (done.output_token_ids, done.finish_reason) == (ids(expected), reason)


@pytest.mark.parametrize(
    ("wanted", "min_tokens", "text"),
    [("abab", 0, "a"), ("abab", 3, "aba"), ("abbb", 3, "ab"), ("bbbb", 4, "bbb")],
)
def test_text_is_cut_at_the_first_stop_string_that_counts(wanted: str, min_tokens: int, text: str) -> None:
    done = complete(ids(wanted), 9, stop=("b",), min_tokens=min_tokens)
    assert isinstance(done.stop_condition, StopStringMatcher)
    assert done.stop_condition.text == text


def test_overlapping_stop_strings_count_from_where_they_end() -> None:
    done = complete(ids("aaaa"), 9, stop=("aa",), min_tokens=3)
    assert isinstance(done.stop_condition, StopStringMatcher)
    assert (len(done.output_token_ids), done.stop_condition.text) == (3, "a")
