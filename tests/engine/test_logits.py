"""Logits as rows ask for them: against transformers' own processors, and by hand; vocabulary of 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from batchgen.engine.logits import adjust, is_adjusted
from batchgen.engine.request import Request
from batchgen.sampling_params import SamplingParams

VOCAB = 8
PROMPT = (1, 2, 2, 5)


def request(output: Sequence[int] = (), *, ends: Sequence[int] = (), **params: Any) -> Request:
    made = Request(
        0, np.array(PROMPT, np.int32), SamplingParams(**params), 0, max_tokens=99, end_token_ids=frozenset(ends)
    )
    made.output_token_ids = list(output)
    return made


class Allowing:
    """A constraint that allows the same tokens for ever."""

    error = None

    def __init__(self, *token_ids: int) -> None:
        self._bits = np.packbits([token in token_ids for token in range(2 * VOCAB)], bitorder="little")

    def allowed(self) -> npt.NDArray[np.uint8]:
        return self._bits

    def feed(self, token_id: int) -> bool:
        return False


def adjusted(logits: torch.Tensor, *requests: Request) -> torch.Tensor:
    changed = logits.clone()
    adjust(changed, requests)
    return changed


def logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB) * 3


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
@pytest.mark.parametrize("output", [(), (3,), (3, 1, 3, 3)])
def test_repetition_penalty_is_that_of_transformers(penalty: float, output: tuple[int, ...]) -> None:
    given = logits()
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([[*PROMPT, *output]]), given.clone())
    assert adjusted(given, request(output, repetition_penalty=penalty)).equal(expected)


def test_presence_and_frequency_count_the_completion_only() -> None:
    given = logits()
    expected = given.clone()
    expected[0, 3] -= 0.5 + 3 * 0.25
    expected[0, 1] -= 0.5 + 1 * 0.25
    found = adjusted(given, request((3, 1, 3, 3), presence_penalty=0.5, frequency_penalty=0.25))
    torch.testing.assert_close(found, expected)


def test_negative_penalties_make_tokens_more_likely() -> None:
    found = adjusted(torch.zeros(1, VOCAB), request((3, 3), presence_penalty=-1.0, frequency_penalty=-0.5))
    assert found[0].tolist() == [0, 0, 0, 2.0, 0, 0, 0, 0]


def test_bias_comes_before_the_penalties() -> None:
    found = adjusted(torch.zeros(1, VOCAB), request((3,), logit_bias=((3, 4.0), (6, -1.5)), repetition_penalty=2.0))
    assert found[0].tolist() == [0, 0, 0, 2.0, 0, 0, -1.5, 0]


@pytest.mark.parametrize("output", [(), (4,), (4, 6), (6, 4), (0, 4, 6), (7,)])
def test_bad_words_are_those_of_transformers_within_the_completion(output: tuple[int, ...]) -> None:
    words = [[7], [4, 6], [4, 6, 1], [0, 4, 6, 2]]
    given = logits()
    expected = given.clone()
    if output:  # transformers takes prompt and completion together, and cannot take none
        processor = NoBadWordsLogitsProcessor(words, eos_token_id=None)
        expected = processor(torch.tensor([output]), given.clone())
    else:
        expected[0, 7] = -torch.inf
    assert adjusted(given, request(output, bad_words=tuple(map(tuple, words)))).equal(expected)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4])
def test_min_tokens_is_min_new_tokens_of_transformers(num_tokens: int) -> None:
    given, output = logits(), (3,) * num_tokens
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, eos_token_id=[0, 6])
    expected = processor(torch.tensor([[*PROMPT, *output]]), given.clone())
    asks = request(output, ends=(0, 6), min_tokens=3)
    assert adjusted(given, asks).equal(expected)
    assert is_adjusted(asks) == (num_tokens < 3)


def test_end_token_beyond_the_logits_is_no_place() -> None:
    assert adjusted(torch.zeros(1, VOCAB), request(ends=(2, 500), min_tokens=1))[0, 2] == -torch.inf


def test_a_constraint_comes_last_and_for_its_own_row_only() -> None:
    given = logits(3)
    rows = [request(), request(logit_bias=((5, 4.0), (6, 99.0))), request()]
    rows[1].constraint, rows[2].constraint = Allowing(2, 5, VOCAB + 1), Allowing()
    found = adjusted(given, *rows)
    assert is_adjusted(rows[1])
    assert found[0].equal(given[0])
    assert found[1].isfinite().nonzero()[:, 0].tolist() == [2, 5]
    assert found[1, [2, 5]].tolist() == [given[1, 2].item(), (given[1, 5] + 4.0).item()]
    assert not found[2].isfinite().any()


def test_a_row_is_changed_by_its_own_values_only() -> None:
    given = logits(4)
    rows = [
        request((3, 3), repetition_penalty=1.5, frequency_penalty=1.0),
        request((3, 3)),
        request((3, 3), presence_penalty=1.0, bad_words=((3, 5),)),
        request((1,), logit_bias=((0, 9.0),), min_tokens=2, ends=(4,)),
    ]
    together = adjusted(given, *rows)
    assert together.equal(torch.cat([adjusted(given[n : n + 1], row) for n, row in enumerate(rows)]))
    assert together[1].equal(given[1])


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, False),
        ({"temperature": 1.0, "top_p": 0.5, "logprobs": 3, "stop": ("x",)}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"logit_bias": ((1, 1.0),)}, True),
        ({"bad_words": ((1,),)}, True),
        ({"min_tokens": 1}, True),
    ],
    ids=str,
)
def test_only_rows_that_ask_pay(params: dict[str, Any], expected: bool) -> None:
    assert is_adjusted(request(**params)) is expected
