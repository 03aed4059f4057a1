"""RowSampling: the sampling values of each row: the row's own (`input.sampling`), else the job's.

Takes a few bytes per row, since rows with equal values share one SamplingParams; none if no row has its own values.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from batchgen.errors import RowError
from batchgen.io.input.strict_json import quote
from batchgen.prompts.messages import describe
from batchgen.prompts.prompt import BadRow, Prompts
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import SamplingSpec
from batchgen.spec.problems import values_problem

if TYPE_CHECKING:
    from batchgen.io.input.rows import Row
    from batchgen.prompts.reasoning import Reasoning
    from batchgen.prompts.sampling_encoder import SamplingEncoder

Scalar = TypeVar("Scalar", bound=np.generic)

_MAX_CACHED = 4096  # distinct row values whose result is cached; a seed in every row would fill the memory
_NO_LIMIT = np.iinfo(np.int32).max


class _Resolved(NamedTuple):
    params_index: int  # in `distinct`
    seed: int


class RowSampling:
    """The sampling values of the good rows of a job, by their position in the token store.

    A row's own seed is kept apart from its SamplingParams, so that rows which differ only in their seed share those.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        sampling_encoder: SamplingEncoder,
        column: str | None = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        self.distinct = [params]
        self._seed = seed
        self._sampling_encoder = sampling_encoder
        self._column = column
        self._reasoning = reasoning
        self._params_indices = array("I")  # [num_rows], in `distinct`; empty without a column
        self._seeds = array("Q")  # [num_rows]; empty without a column
        self._params_to_index = {params: 0}
        self._cache: dict[str, _Resolved] = {}

    def add(self, rows: Sequence[Row], prompts: Prompts) -> Prompts:
        """Store the values of the next rows. Returns their prompts, without those of rows with bad values."""
        if self._column is None:
            return prompts
        bad: dict[int, BadRow] = {}
        for n in np.flatnonzero(prompts.lengths).tolist():
            row = rows[n]
            try:
                resolved = self._resolve(row.values.get(self._column))
            except RowError as error:
                text = f"{row.location}: column {quote(self._column)}: {error}"
                bad[n] = BadRow(row.index, text, int(prompts.lengths[n]))
                continue
            self._params_indices.append(resolved.params_index)
            self._seeds.append(resolved.seed)
        return prompts.without(bad) if bad else prompts

    def params(self, position: int) -> SamplingParams:
        """Return the values of a row, except for its seed."""
        return self.distinct[self._params_indices[position] if self._params_indices else 0]

    def seed(self, position: int) -> int:
        """Return the seed of a row."""
        return self._seeds[position] if self._seeds else self._seed

    def max_tokens(self, room: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the most tokens that each row may get; `room` is what the context limit leaves to each."""
        limits = [_NO_LIMIT if limit is None else limit for limit in self.limits]
        return np.minimum(room, self._per_row(limits, np.int32))

    @property
    def limits(self) -> list[int | None]:
        """The most tokens, thinking included, that the values in `distinct` allow; None: any number."""
        return [self._limit(params) for params in self.distinct]

    def _limit(self, params: SamplingParams) -> int | None:
        if self._reasoning is None or params.max_tokens is None:
            return params.max_tokens
        budget = params.max_reasoning_tokens
        return None if budget is None else budget + params.max_tokens + self._reasoning.num_extra_tokens

    def is_requested(self, key: str) -> bool:
        """Return whether any row has a value for `key`, whose default is None."""
        return any(getattr(params, key) is not None for params in self.distinct)

    @property
    def is_scored(self) -> npt.NDArray[np.bool_]:
        """Whether a row requests the logprobs of its prompt: one value for all rows, or [num_rows]."""
        return self._per_row([params.prompt_logprobs is not None for params in self.distinct], np.bool_)

    @property
    def num_samples(self) -> npt.NDArray[np.int64]:
        """The number of samples: one value for all rows, or [num_rows]."""
        return self._per_row([params.n for params in self.distinct], np.int64)

    @property
    def worst_case(self) -> SamplingParams:
        """Values with which a step takes at least as much memory as with those of any row."""
        rows = self.distinct
        is_greedy = all(row.is_greedy for row in rows)
        keeps_logits = not any(
            row.penalises
            or row.logit_bias
            or row.bad_words
            or row.min_tokens
            or row.structured
            or row.max_reasoning_tokens is not None
            for row in rows
        )
        return SamplingParams(
            temperature=0.0 if is_greedy else 1.0,
            top_p=1.0 if is_greedy else 0.9,
            repetition_penalty=1.0 if keeps_logits else 1.1,
            n=max(row.n for row in rows),
            logprobs=_max_or_none(row.logprobs for row in rows),
            prompt_logprobs=_max_or_none(row.prompt_logprobs for row in rows),
        )

    def _per_row(self, values: Sequence[Any], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        """Return `values`, one for each of `distinct`, as [num_rows]; as [1] if all rows have the job's."""
        array = np.array(values, dtype)
        return array[np.frombuffer(self._params_indices, np.uint32)] if self._params_indices else array[:1]

    def _resolve(self, value: Any) -> _Resolved:
        key = repr(value)
        if key not in self._cache:
            if len(self._cache) == _MAX_CACHED:
                self._cache.clear()
            self._cache[key] = self._parse({} if value is None else value)
        return self._cache[key]

    def _parse(self, value: Any) -> _Resolved:
        if not isinstance(value, Mapping):
            raise RowError(f"expected keys of `sampling` with values, found {describe(value)}")
        try:
            checked = SamplingSpec.model_validate(value)
        except ValidationError as error:
            raise RowError(values_problem(error, "sampling")) from None
        given = {name: getattr(checked, name) for name in checked.model_fields_set}
        seed = given.pop("seed", self._seed)
        params = replace(self.distinct[0], **self._sampling_encoder.encode(given))
        if params.contradiction is not None:
            raise RowError(params.contradiction)
        index = self._params_to_index.setdefault(params, len(self.distinct))
        if index == len(self.distinct):
            self.distinct.append(params)
        return _Resolved(index, seed)


def _max_or_none(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)
