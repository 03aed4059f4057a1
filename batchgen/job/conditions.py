"""Conditions: what ends the completions of a row, and which tokens they may get. Knows the job; generates nothing."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from batchgen.engine.request import StopCondition, TokenConstraint
from batchgen.job.outputs import Outputs
from batchgen.job.run_config import RunConfig
from batchgen.plan.token_store import TokenIds
from batchgen.prompts.grammar import GrammarConstraint
from batchgen.prompts.thinking import AnswerConditions, Thinking, TokensBefore
from batchgen.sampling_params import SamplingParams


class Conditions(NamedTuple):
    """The conditions of one sample, as the fields of a request."""

    end_token_ids: frozenset[int]
    stop_condition: StopCondition | None = None
    constraint: TokenConstraint | None = None
    thinking: Thinking | None = None


class RowConditions:
    """The conditions of one row. Each sample has objects of its own."""

    def __init__(self, config: RunConfig, outputs: Outputs, params: SamplingParams, prompt: TokenIds) -> None:
        self._config = config
        self._outputs = outputs
        self._params = params
        self._model_ends = frozenset() if params.ignore_eos else config.model.eos_token_ids
        self._stops = params.stop_token_ids | outputs.stop_tokens(params)
        self._before = outputs.before(prompt)
        # None: the row may still begin to think. A thinking that the prompt has closed is over.
        self._is_open = None if config.reasoning is None else config.reasoning.is_open_after(prompt)

    def of_sample(self) -> Conditions:
        """Return the conditions of a new sample."""
        make_stop, before = partial(self._outputs.stop_condition, self._params), self._before
        ends, reasoning = self._model_ends | self._stops, self._config.reasoning
        if reasoning is None or self._is_open is False:
            return Conditions(ends, make_stop(before), self._constraint(before))
        answer = AnswerConditions(self._model_ends, self._stops, make_stop, self._constraint, before)
        return Conditions(ends, thinking=Thinking(reasoning, self._params, answer, is_open=self._is_open is True))

    def _constraint(self, before: TokensBefore) -> GrammarConstraint | None:
        if self._params.structured is None:
            return None
        after = self._outputs.preceding(self._params, before)
        ends = self._model_ends | self._stops
        return self._config.sampling_encoder.grammars.constraint(self._params.structured, ends, after)
