"""Outputs: turns a finished request into the output of its sample. Knows token texts and the optional columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from batchgen.engine.request import Request, TokenLogprobs
from batchgen.io.input.rows import RowLocations
from batchgen.prompts.detokenize import Detokenizer, StopStringMatcher, TokenTexts
from batchgen.prompts.row_sampling import RowSampling
from batchgen.request_output import RequestOutput
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import OutputSpec
from batchgen.stats.resumed import origin_values

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NO_LOGPROBS: dict[str, Any] = {"logprob": None, "rank": None, "top": None}


def optional_columns(output: OutputSpec, sampling: RowSampling) -> set[str]:
    """Return the optional columns of a job: those that the job, or any of its rows, asks for."""
    asked = {name for name in ("logprobs", "prompt_logprobs") if sampling.is_requested(name)}
    return asked | {"completion_token_ids"} if output.token_ids else asked


def _origin(request: Request) -> list[int] | None:
    """Return the origin of the prompt's tokens, with sample 0 only; None for a request that never ran."""
    if request.sample_index:
        return []
    account = request.account
    if account.origin is None:
        return None
    return origin_values(account.origin, account.hit_ceiling, account.num_unique_tokens)


class Outputs:
    """Makes the outputs of one job; keeps the detokenizers that its rows need."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, locations: RowLocations, *, token_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._locations = locations
        self._token_ids = token_ids
        self._detokenizers: dict[bool, Detokenizer] = {}

    def stop_condition(self, params: SamplingParams) -> StopStringMatcher | None:
        """Return the matcher that watches a new request for its stop strings; None without stop strings."""
        return StopStringMatcher(self._detokenizer(params), params.stop, params.min_tokens) if params.stop else None

    def of(self, request: Request) -> RequestOutput:
        """Make the output of a finished request: its text without what ended it, its error with the row's location."""
        assert request.finish_reason is not None
        return RequestOutput(
            row_index=request.row_index,
            finish_reason=request.finish_reason,
            sample_index=request.sample_index,
            completion=self._text(request) if request.output_token_ids else None,
            error=None if request.error is None else f"{self._locations[request.row_index]}: {request.error}",
            prompt_tokens=request.num_prompt_tokens,
            completion_tokens=len(request.output_token_ids),
            cached_tokens=request.num_cached_tokens,
            completion_token_ids=request.output_token_ids if self._token_ids else None,
            logprobs=None if request.params.logprobs is None else self._logprobs(request.output_logprobs),
            prompt_logprobs=self._prompt_logprobs(request),
            origin=_origin(request),
        )

    def _text(self, request: Request) -> str:
        """Return the completion as text, without the end token or stop string that ended it."""
        if isinstance(request.stop_condition, StopStringMatcher):
            return request.stop_condition.text
        token_ids = request.output_token_ids
        is_ended = token_ids[-1] in request.end_token_ids
        return self._detokenizer(request.params).decode(token_ids[:-1] if is_ended else token_ids)

    def decode(self, request: Request, num_tokens: int) -> str:
        """Return the text of the first `num_tokens` tokens of a completion."""
        return self._detokenizer(request.params).decode(request.output_token_ids[:num_tokens])

    def _prompt_logprobs(self, request: Request) -> list[Mapping[str, Any]] | None:
        """Return one entry per prompt token; the first has no log-probability, as nothing precedes it."""
        if request.params.prompt_logprobs is None or request.computes_whole_prompt:
            return None
        first = self._token(int(request.prompt_token_ids[0])) | _NO_LOGPROBS
        return [first, *self._logprobs(request.prompt_logprobs)]

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> list[Mapping[str, Any]]:
        return [
            self._token(token.token_id) | {"logprob": token.logprob, "rank": token.rank, "top": list(self._top(token))}
            for token in tokens
        ]

    def _top(self, token: TokenLogprobs) -> Iterator[Mapping[str, Any]]:
        for token_id, logprob in token.top:
            yield self._token(token_id) | {"logprob": logprob}

    def _token(self, token_id: int) -> dict[str, Any]:
        return {"token_id": token_id, "token": self._texts[token_id]}

    @cached_property
    def _texts(self) -> TokenTexts:
        return TokenTexts(self._tokenizer)

    def _detokenizer(self, params: SamplingParams) -> Detokenizer:
        skips = params.skip_special_tokens
        if skips not in self._detokenizers:
            self._detokenizers[skips] = Detokenizer(self._tokenizer, skip_special_tokens=skips)
        return self._detokenizers[skips]
