"""Outputs: turns a finished request into the output of its sample. Knows token texts and the optional columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from batchgen.engine.request import Request, TokenLogprobs
from batchgen.io.input.rows import RowLocations
from batchgen.plan.token_store import TokenIds
from batchgen.prompts.detokenize import (
    Detokenizer,
    Preceding,
    StopStringMatcher,
    StopTexts,
    TextSearch,
    TokenTexts,
)
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.thinking import Texts, Thinking, TokensBefore
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import OutputSpec
from batchgen.stats.resumed import origin_values

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NO_LOGPROBS: dict[str, Any] = {"logprob": None, "rank": None, "top": None}


def optional_columns(output: OutputSpec, sampling: RowSampling) -> set[str]:
    """Return the optional columns of a job: those that the job, or any of its rows, asks for."""
    asked = {name for name in ("logprobs", "prompt_logprobs") if sampling.is_requested(name)}
    asked |= {"reasoning", "reasoning_tokens"} if output.reasoning == "split" else set()
    return asked | {"completion_token_ids"} if output.token_ids else asked


def _origin(request: Request) -> list[int] | None:
    """Return the origin of the prompt's tokens, with sample 0 only; None for a request that never ran."""
    if request.sample_index:
        return []
    account = request.account
    if account.origin is None:
        return None
    return origin_values(account.origin, account.hit_ceiling, account.num_unique_tokens)


def _num_reasoning_tokens(request: Request) -> int:
    """Return the number of tokens before the answer; 0 for a completion that does not think."""
    thinking = request.thinking
    return thinking.num_tokens if isinstance(thinking, Thinking) and thinking.has_thought else 0


class Outputs:
    """Makes the outputs of one job; keeps the detokenizers that its rows need.

    `follows_prompt`: a completion is the text that follows its prompt; else it is a text of its own, as in a chat.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, locations: RowLocations, output: OutputSpec, *, follows_prompt: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._locations = locations
        self._output = output
        self._follows_prompt = follows_prompt
        self._is_split = output.reasoning == "split"
        self._stops = StopTexts(tokenizer)
        self._detokenizers: dict[bool, Detokenizer] = {}

    def stop_tokens(self, params: SamplingParams) -> frozenset[int]:
        """Return the special tokens that are stop texts."""
        return self._stops.token_ids(params.stop)

    def before(self, prompt: TokenIds) -> TokensBefore:
        """Return the tokens whose text that of a completion follows; none for a text of its own."""
        return prompt if self._follows_prompt else ()

    def stop_condition(self, params: SamplingParams, before: TokensBefore) -> StopStringMatcher | None:
        """Return the matcher that watches a text after `before` for stop strings; None without stop strings."""
        if not params.stop:
            return None
        stop, special = params.stop, None
        if params.skip_special_tokens and any(map(self._stops.has_special, stop)):
            after = self._detokenizer(skips=False).preceding(before)
            with_special = [text for text in stop if self._stops.has_special(text)]
            special = TextSearch(self._detokenizer(skips=False), with_special, params.min_tokens, after)
            stop = tuple(text for text in stop if not self._stops.has_special(text))
        detokenizer = self._detokenizer(skips=params.skip_special_tokens)
        return StopStringMatcher(detokenizer, stop, params.min_tokens, self.preceding(params, before), special)

    def preceding(self, params: SamplingParams, before: TokensBefore) -> Preceding:
        """Return what precedes a text after the tokens `before`."""
        return self._detokenizer(skips=params.skip_special_tokens).preceding(before)

    def of(self, request: Request) -> RequestOutput:
        """Make the output of a finished request: its texts without what ended it, its error with the row's location."""
        assert request.finish_reason is not None
        texts = self._texts_of(request)
        return RequestOutput(
            row_index=request.row_index,
            finish_reason=request.finish_reason,
            sample_index=request.sample_index,
            completion=texts.completion if request.output_token_ids else None,
            error=None if request.error is None else f"{self._locations[request.row_index]}: {request.error}",
            prompt_tokens=request.num_prompt_tokens,
            completion_tokens=len(request.output_token_ids),
            cached_tokens=request.num_cached_tokens,
            reasoning=texts.reasoning if self._is_split else None,
            reasoning_tokens=_num_reasoning_tokens(request) if self._is_split else None,
            completion_token_ids=request.output_token_ids if self._output.token_ids else None,
            logprobs=self._completion_logprobs(request),
            prompt_logprobs=self._prompt_logprobs(request),
            origin=_origin(request),
        )

    def _texts_of(self, request: Request) -> Texts:
        """Return the texts without the end token or stop string that ended the completion."""
        token_ids, stop, thinking = request.output_token_ids, request.stop_condition, request.thinking
        is_stopped = request.finish_reason is FinishReason.STOP
        end = token_ids[-1] if is_stopped and token_ids[-1] in request.next_end_token_ids else None
        if isinstance(thinking, Thinking):
            thinking.close(end)
            texts = self.decode(request, len(token_ids) - (end is not None))
            if thinking.stop_condition is None:
                return texts
            return texts._replace(completion=thinking.answer_text(thinking.stop_condition.text))
        if not isinstance(stop, StopStringMatcher):
            return self.decode(request, len(token_ids) - (end is not None))
        if end is not None:
            stop.end(end)
        return Texts(stop.text)

    def decode(self, request: Request, num_tokens: int) -> Texts:
        """Return the texts of the first `num_tokens` tokens of a completion."""
        token_ids = request.output_token_ids[:num_tokens]
        detokenizer = self._detokenizer(skips=request.params.skip_special_tokens)
        if isinstance(request.thinking, Thinking):
            return request.thinking.texts(token_ids, detokenizer)
        return Texts(detokenizer.decode(token_ids, detokenizer.preceding(self.before(request.prompt_token_ids))))

    def _completion_logprobs(self, request: Request) -> list[Mapping[str, Any]] | None:
        """Return one entry per token; the texts of the tokens that are written are together the completion."""
        if request.params.logprobs is None:
            return None
        detokenizer = self._detokenizer(skips=request.params.skip_special_tokens)
        is_first = not self.preceding(request.params, self.before(request.prompt_token_ids)).token_ids
        entries = []
        for token in request.output_logprobs:
            entries.append(self._logprobs(token, is_first=is_first))
            is_first = is_first and not detokenizer.is_text(token.token_id)
        return entries

    def _prompt_logprobs(self, request: Request) -> list[Mapping[str, Any]] | None:
        """Return one entry per prompt token; the first has no log-probability, as nothing precedes it."""
        if request.params.prompt_logprobs is None or request.computes_whole_prompt:
            return None
        first = self._token(int(request.prompt_token_ids[0]), is_first=True) | _NO_LOGPROBS
        return [first, *(self._logprobs(token, is_first=False) for token in request.prompt_logprobs)]

    def _logprobs(self, token: TokenLogprobs, *, is_first: bool) -> Mapping[str, Any]:
        top = [self._token(token_id, is_first=is_first) | {"logprob": logprob} for token_id, logprob in token.top]
        entry = {"logprob": token.logprob, "rank": token.rank, "top": top}
        return self._token(token.token_id, is_first=is_first) | entry

    def _token(self, token_id: int, *, is_first: bool) -> dict[str, Any]:
        text = self._texts.first(token_id) if is_first else self._texts[token_id]
        return {"token_id": token_id, "token": text}

    @cached_property
    def _texts(self) -> TokenTexts:
        return TokenTexts(self._tokenizer)

    def _detokenizer(self, *, skips: bool) -> Detokenizer:
        if skips not in self._detokenizers:
            self._detokenizers[skips] = Detokenizer(self._tokenizer, skip_special_tokens=skips)
        return self._detokenizers[skips]
