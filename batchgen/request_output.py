"""RequestOutput: the last of a row's four forms. A root noun that `engine` and `io` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a row ended."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What is written for one sample of one row.

    The token counts are None for a row that was never tokenised. `completion` is None for a row that failed before
    its first token.
    """

    row_index: int
    finish_reason: FinishReason
    sample_index: int = 0
    completion: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens whose KV was reused at the first admission
    # Only where asked for; a mapping a token with the fields of `io/output/schema.py`.
    completion_token_ids: Sequence[int] | None = None
    logprobs: Sequence[Mapping[str, Any]] | None = None
    prompt_logprobs: Sequence[Mapping[str, Any]] | None = None
    # Where its prompt tokens came from (`stats/resumed.py`): for the report of a later session, never in the output.
    origin: Sequence[int] | None = None
