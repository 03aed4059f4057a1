"""Requests that think before they answer: limits, end tokens and late results, with a thinking of a known length."""

from __future__ import annotations

import pytest

from batchgen.engine.logits import is_adjusted
from batchgen.engine.request import Request, RequestStatus, SampledToken, TokenConstraint
from batchgen.sampling_params import SamplingParams
from tests.engine.samples import END
from tests.engine.simulated import finish, make_engine, tokens
from tests.engine.test_lag import Anything, ScriptedRunner

STOP = 8


class Thinks:
    """Thinks for so many tokens; then STOP ends the answer."""

    def __init__(self, num_thinking: int, *, needs_results: bool = False, is_constrained: bool = False) -> None:
        self.num_thinking = num_thinking
        self.needs_results = needs_results
        self.constraint: TokenConstraint | None = Anything() if is_constrained else None
        self.num_fed = 0

    @property
    def is_over(self) -> bool:
        return self.num_fed > self.num_thinking

    @property
    def num_tokens(self) -> int:
        return min(self.num_fed, self.num_thinking)

    @property
    def end_token_ids(self) -> frozenset[int]:
        return frozenset([END, STOP] if self.is_over else [END])

    def feed(self, token_id: int) -> bool:
        self.num_fed += 1
        return False


def make_request(thinking: Thinks, max_tokens: int | None = None, *, room: int = 40, min_tokens: int = 0) -> Request:
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    return Request(0, tokens("aaaa"), params, 0, max_tokens=room, thinking=thinking)


def append(request: Request, *token_ids: int) -> int:
    """How many tokens the completion has after these, or when it has finished."""
    for token_id in token_ids:
        if request.status < RequestStatus.FINISHED:
            request.append(SampledToken(token_id))
    return len(request.output_token_ids)


@pytest.mark.parametrize(
    ("max_tokens", "room", "num_tokens", "reason"),
    [(1, 40, 4, "length"), (3, 40, 6, "length"), (None, 8, 8, "length"), (9, 2, 2, "length"), (9, 5, 5, "length")],
)
def test_max_tokens_are_those_of_the_answer(max_tokens: int | None, room: int, num_tokens: int, reason: str) -> None:
    request = make_request(Thinks(3), max_tokens, room=room)
    assert append(request, *[7] * 10) == num_tokens
    assert request.finish_reason == reason


def test_stop_tokens_end_the_answer_and_end_tokens_everything() -> None:
    assert append(make_request(Thinks(3)), 7, STOP, 7, 7, STOP, 7) == 5
    assert append(make_request(Thinks(3)), 7, END, 7) == 2


def test_min_tokens_are_those_of_the_answer() -> None:
    request = make_request(Thinks(2), min_tokens=2)
    found = []
    for _ in range(6):
        found.append((request.num_answer_tokens, is_adjusted(request)))
        append(request, 7)
    assert found == [(0, True), (0, True), (0, True), (1, True), (2, False), (3, False)]


@pytest.mark.parametrize(("needs_results", "is_constrained"), [(False, False), (False, True), (True, False)])
def test_the_thinking_decides_whether_results_may_be_late(needs_results: bool, is_constrained: bool) -> None:
    request = make_request(Thinks(3, needs_results=needs_results, is_constrained=is_constrained))
    assert request.needs_results == needs_results
    assert is_adjusted(request) == is_constrained
    engine = make_engine()
    engine.runner.lag = 1
    engine.scheduler.add(request)
    engine.step()
    assert len(engine.runner.under_way) == (not needs_results)


def test_a_row_that_may_still_think_does_not_leave_early() -> None:
    """Its first token is pending when the next step is decided; only its outcome says that more may come."""
    for num_thinking, num_tokens, num_overrun in ((0, 1, 1), (2, 3, 1)):
        engine = make_engine()
        engine.runner = ScriptedRunner(99)
        request = make_request(Thinks(num_thinking), max_tokens=1)
        [done] = finish(engine, [request])
        assert (done.finish_reason, len(done.output_token_ids)) == ("length", num_tokens)
        assert engine.stats.num_overrun_tokens == num_overrun


def test_a_limit_is_known_when_the_answer_has_begun() -> None:
    engine = make_engine()
    engine.runner = ScriptedRunner(99)
    [done] = finish(engine, [make_request(Thinks(2), max_tokens=3)])
    assert len(done.output_token_ids) == 5
    assert engine.stats.num_overrun_tokens == 0
