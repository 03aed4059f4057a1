"""RequestOutput: what is written for one sample of a row; the last form that a row takes. Knows no other room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    ERROR = "error"


class RequestOutput(NamedTuple):
    """One sample of one row, as it is written to the journal and from there to the part files.

    The token counts are None for a row that was never tokenised; `completion` is None for a row that failed before
    its first token, or ended before its answer.
    """

    row_index: int
    finish_reason: FinishReason
    sample_index: int = 0
    completion: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens whose KV was reused at the first admission
    # Only where the job asks for them. Log-probabilities are one mapping per token, see `io/output/schema.py`.
    reasoning: str | None = None  # None: the completion did not think
    reasoning_tokens: int | None = None
    completion_token_ids: Sequence[int] | None = None
    logprobs: Sequence[Mapping[str, Any]] | None = None
    prompt_logprobs: Sequence[Mapping[str, Any]] | None = None
    # Where the KV of its prompt tokens came from (`stats/resumed.py`): in the journal only, for the reports of resumed
    # runs.
    origin: Sequence[int] | None = None
