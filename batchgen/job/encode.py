"""Rows to prompts, a batch at a time. Knows rows, their encoder and the model's limits; knows no processes.

Worker processes import this file, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from batchgen.errors import RowError, TemplateError
from batchgen.io.lists import plain_lists
from batchgen.io.rows import Row, RowBatch
from batchgen.prompts.encoder import PromptEncoder
from batchgen.prompts.prompt import BadRow, Prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from batchgen.job_spec import InputSpec


class RowEncoder:
    """Encodes the rows of one job. A copy sent to another process is made anew there.

    Raises what PromptEncoder raises.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        spec: InputSpec,
        *,
        vocab_size: int,
        max_model_len: int,
        clock: datetime,
    ) -> None:
        self.spec = spec
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._encoder = PromptEncoder(tokenizer, spec, vocab_size=vocab_size, clock=clock)
        limits = {"vocab_size": vocab_size, "max_model_len": max_model_len}
        self._make_again = partial(RowEncoder, tokenizer, spec, **limits, clock=clock)

    def __reduce__(self) -> tuple[Callable[[], RowEncoder], tuple[()]]:
        return self._make_again, ()

    def encode(self, rows: Sequence[Row]) -> Prompts:
        """The prompts of some rows."""
        prompts = [self._encode_row(row) for row in rows]
        good = [[] if isinstance(prompt, BadRow) else prompt for prompt in prompts]
        return Prompts(
            np.fromiter(chain.from_iterable(good), np.int32),
            np.fromiter(map(len, good), np.int64),
            [prompt for prompt in prompts if isinstance(prompt, BadRow)],
        )

    def encode_token_ids(self, batch: RowBatch) -> Prompts | None:
        """The prompts of a batch that came as token ids; None where they are not all good, or lie in another way.

        Gives what `encode` gives, fifty times as fast.
        """
        assert self.spec.token_ids is not None
        column = batch.column(self.spec.token_ids)
        lists = None if column is None else plain_lists(column)
        if lists is None or not len(lists.values):
            return None
        ids, lengths = lists
        if (
            ids.min() < 0
            or ids.max() >= self._vocab_size
            or not 0 < lengths.min() <= lengths.max() < self._max_model_len
        ):
            return None
        return Prompts(ids.astype(np.int32), lengths)

    def _encode_row(self, row: Row) -> list[int] | BadRow:
        if row.error is not None:
            return BadRow(row.index, row.error)
        try:
            token_ids = self._encoder.encode(row)
        except RowError as error:
            return BadRow(row.index, str(error), by_template=isinstance(error, TemplateError))
        if len(token_ids) >= self._max_model_len:
            return BadRow(row.index, self._too_long(row, len(token_ids)), len(token_ids))
        return token_ids

    def _too_long(self, row: Row, num_tokens: int) -> str:
        return (
            f"{row.place}: the prompt has {num_tokens} tokens; the limit is {self._max_model_len} "
            "(engine.max_model_len or the model's own) and at least one must be left for the completion"
        )
