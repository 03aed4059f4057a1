"""RowSampling: which sampling values each row has: the job's, and over them the row's own (`input.sampling`).

Where no row has its own, nothing is kept a row; else a few bytes, as rows with equal values share one SamplingParams.
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
    from batchgen.prompts.token_values import TokenValues

Scalar = TypeVar("Scalar", bound=np.generic)

_MAX_KNOWN = 4096  # overrides whose values are remembered; rows with a seed each would fill the memory
_NO_LIMIT = np.iinfo(np.int32).max


class _Override(NamedTuple):
    params: int  # number in `distinct`
    seed: int


class RowSampling:
    """The sampling values of the good rows of a job, by their position in the token store.

    A row's own seed is kept apart from its SamplingParams, so that rows which differ in nothing else share those.
    """

    def __init__(self, params: SamplingParams, seed: int, tokens: TokenValues, column: str | None = None) -> None:
        self.distinct = [params]
        self._seed = seed
        self._tokens = tokens
        self._column = column
        self._numbers = array("I")  # in `distinct`, one a row; empty without a column
        self._seeds = array("Q")  # the same
        self._number_of = {params: 0}
        self._known: dict[str, _Override] = {}

    def add(self, rows: Sequence[Row], prompts: Prompts) -> Prompts:
        """Take the values of the next rows; the prompts, those rows bad whose values cannot be used."""
        if self._column is None:
            return prompts
        bad: dict[int, BadRow] = {}
        for index in np.flatnonzero(prompts.lengths).tolist():
            row = rows[index]
            try:
                number, seed = self._override(row.values.get(self._column))
            except RowError as error:
                text = f"{row.location}: column {quote(self._column)}: {error}"
                bad[index] = BadRow(row.index, text, int(prompts.lengths[index]))
                continue
            self._numbers.append(number)
            self._seeds.append(seed)
        return prompts.without(bad) if bad else prompts

    def params(self, position: int) -> SamplingParams:
        return self.distinct[self._numbers[position] if self._numbers else 0]

    def seed(self, position: int) -> int:
        return self._seeds[position] if self._seeds else self._seed

    def max_tokens(self, room: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The most tokens that each row may get where the context leaves `room`."""
        limits = [_NO_LIMIT if params.max_tokens is None else params.max_tokens for params in self.distinct]
        return np.minimum(room, self._by_row(limits, np.int32))

    def asks(self, name: str) -> bool:
        """Whether any row has a value for this key, which is None by default."""
        return any(getattr(params, name) is not None for params in self.distinct)

    @property
    def is_scored(self) -> npt.NDArray[np.bool_]:
        """Whether the logprobs of a row's prompt are asked for; one value for all rows, or one a row."""
        return self._by_row([params.prompt_logprobs is not None for params in self.distinct], np.bool_)

    @property
    def num_samples(self) -> npt.NDArray[np.int64]:
        """One value for all rows, or one a row."""
        return self._by_row([params.n for params in self.distinct], np.int64)

    @property
    def widest(self) -> SamplingParams:
        """What takes as much memory in a step as the values of any row."""
        rows = self.distinct
        is_greedy = all(row.is_greedy for row in rows)
        keeps_logits = not any(
            row.penalises or row.logit_bias or row.bad_words or row.min_tokens or row.structured for row in rows
        )
        return SamplingParams(
            temperature=0.0 if is_greedy else 1.0,
            top_p=1.0 if is_greedy else 0.9,
            repetition_penalty=1.0 if keeps_logits else 1.1,
            n=max(row.n for row in rows),
            logprobs=_most(row.logprobs for row in rows),
            prompt_logprobs=_most(row.prompt_logprobs for row in rows),
        )

    def _by_row(self, values: Sequence[Any], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        """`values`, one of each of `distinct`, where the rows are."""
        array = np.array(values, dtype)
        return array[np.frombuffer(self._numbers, np.uint32)] if self._numbers else array[:1]

    def _override(self, value: Any) -> _Override:
        key = repr(value)
        if key not in self._known:
            if len(self._known) == _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._check({} if value is None else value)
        return self._known[key]

    def _check(self, value: Any) -> _Override:
        if not isinstance(value, Mapping):
            raise RowError(f"expected keys of `sampling` with values, found {describe(value)}")
        try:
            checked = SamplingSpec.model_validate(value)
        except ValidationError as error:
            raise RowError(values_problem(error, "sampling")) from None
        given = {name: getattr(checked, name) for name in checked.model_fields_set}
        seed = given.pop("seed", self._seed)
        params = replace(self.distinct[0], **self._tokens.resolve(given))
        number = self._number_of.setdefault(params, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(params)
        return _Override(number, seed)


def _most(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)
