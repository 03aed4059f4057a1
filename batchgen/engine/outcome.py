"""What a step gives a request: a token, with its log-probabilities where they were asked for, or an error."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """One token under the model's own distribution, before temperature, penalties and filters."""

    token_id: int
    logprob: float
    rank: int  # from 1
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the best, best first


class Sampled(NamedTuple):
    """The next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Failed(NamedTuple):
    """The row ends here."""

    error: str


Outcome = Sampled | Failed
