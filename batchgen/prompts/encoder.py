"""Encodes rows as the token ids of their prompts. Knows which columns make a prompt, and the model's limits.

Knows no processes. Worker processes import this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from batchgen.errors import RowError, TemplateError
from batchgen.io.input.columns import plain_lists
from batchgen.prompts.messages import (
    Message,
    Values,
    chat_of,
    message_list,
    system_value,
    text_value,
    token_id_list,
)
from batchgen.prompts.prompt import BadRow, Prompts
from batchgen.prompts.templates import ChatTemplate, UserTemplate
from batchgen.prompts.text_encoder import TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from batchgen.io.input.rows import Row, RowBatch
    from batchgen.spec.job_spec import InputSpec


class RowEncoder:
    """Encodes the rows of one job. Only its arguments are pickled: another process builds its own encoder from them.

    `vocab_size` is the model's number of token ids. `clock` is the time that templates print, the same in every row.
    A chat always ends with the template's generation prompt, even if its last message is the assistant's.
    Raises ModelError for a chat job on a tokenizer without a chat template, SpecError for a bad `input.template`.
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
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._text_encoder = TextEncoder(tokenizer)
        self._user_template = None if spec.template is None else UserTemplate(spec.template)
        is_chat = spec.text is None and spec.token_ids is None
        self._chat_template = ChatTemplate(tokenizer, clock) if is_chat else None
        column = spec.prompt or spec.messages or spec.text or spec.token_ids
        self._prompt_source = "input.template" if column is None else f"column {column!r}"
        limits = {"vocab_size": vocab_size, "max_model_len": max_model_len}
        self._rebuild = partial(RowEncoder, tokenizer, spec, **limits, clock=clock)

    def __reduce__(self) -> tuple[Callable[[], RowEncoder], tuple[()]]:
        return self._rebuild, ()

    def encode(self, rows: Sequence[Row]) -> Prompts:
        """Return the prompts of some rows; rows that cannot be encoded, or are too long, are among its bad rows."""
        prompts = [self._try_encode(row) for row in rows]
        good = [[] if isinstance(prompt, BadRow) else prompt for prompt in prompts]
        return Prompts(
            np.fromiter(chain.from_iterable(good), np.int32),
            np.fromiter(map(len, good), np.int64),
            [prompt for prompt in prompts if isinstance(prompt, BadRow)],
        )

    def encode_token_ids(self, batch: RowBatch) -> Prompts | None:
        """Return the prompts of a batch of token ids, as `encode` does but fifty times as fast.

        Returns None if a row is bad, or if the column is not a plain Arrow list of integers.
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
            or not 0 < lengths.min() <= lengths.max() < self.max_model_len
        ):
            return None
        return Prompts(ids.astype(np.int32), lengths)

    def encode_row(self, row: Row) -> list[int]:
        """Return the token ids of a row's prompt, at least one; a prompt may be too long.

        Raises RowError, naming the row's location and column, and TemplateError if a template refuses the row.
        """
        assert row.error is None, "a row that could not be read has no prompt"
        with _prefixed_error(row.location):
            token_ids = self._encode_values(row.values)
            with _prefixed_error(self._prompt_source):
                self._check_ids(token_ids)
        return token_ids

    def _try_encode(self, row: Row) -> list[int] | BadRow:
        if row.error is not None:
            return BadRow(row.index, row.error)
        try:
            token_ids = self.encode_row(row)
        except RowError as error:
            return BadRow(row.index, str(error), by_template=isinstance(error, TemplateError))
        if len(token_ids) >= self.max_model_len:
            return BadRow(row.index, self._too_long(row, len(token_ids)), len(token_ids))
        return token_ids

    def _encode_values(self, values: Values) -> list[int]:
        spec = self.spec
        if spec.token_ids is not None:
            return token_id_list(values, spec.token_ids)
        if spec.text is not None:
            text = text_value(values, spec.text)
            with _prefixed_error(self._prompt_source):
                return self._text_encoder.encode_raw(text)
        messages = self._messages(values)
        with _prefixed_error(self._prompt_source):
            return self._encode_chat(messages)

    def _messages(self, values: Values) -> list[Message]:
        spec = self.spec
        if spec.messages is not None:
            return message_list(values, spec.messages)
        if self._user_template is not None:
            user = self._user_template.render(values)
        else:
            assert spec.prompt is not None
            user = text_value(values, spec.prompt)
        return chat_of(system_value(values, spec.system), user)

    def _encode_chat(self, messages: list[Message]) -> list[int]:
        assert self._chat_template is not None
        escape = self._text_encoder.control_tokens.escape
        messages, literals = escape(messages, also_used=self._chat_template.source)
        return self._text_encoder.encode_chat(self._chat_template.render(messages), literals)

    def _check_ids(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RowError("the prompt has no tokens")
        last = self._vocab_size - 1
        if min(token_ids) < 0 or max(token_ids) > last:
            position = next(n for n, token_id in enumerate(token_ids) if not 0 <= token_id <= last)
            ids = f"the model's ids go from 0 to {last}, {self._vocab_size} in all"
            raise RowError(f"token {position} is {token_ids[position]}; {ids}")

    def _too_long(self, row: Row, num_tokens: int) -> str:
        return (
            f"{row.location}: the prompt has {num_tokens} tokens; the limit is {self.max_model_len} "
            "(engine.max_model_len or the model's own) and at least one must be left for the completion"
        )


@contextmanager
def _prefixed_error(prefix: str) -> Iterator[None]:
    """Put `prefix` before the message of a RowError."""
    try:
        yield
    except RowError as error:
        raise type(error)(f"{prefix}: {error}") from error.__cause__
