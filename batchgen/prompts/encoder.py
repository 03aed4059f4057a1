"""Encodes rows as the token ids of their prompts. Knows which columns make a prompt, and the model's limits.

Knows no processes. Worker processes import this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from batchgen.errors import RowError, TemplateError
from batchgen.io.input.columns import plain_lists
from batchgen.prompts.marks import texts_of
from batchgen.prompts.messages import (
    Chat,
    Message,
    Values,
    chat_of,
    check_last_message,
    message_list,
    object_list,
    system_value,
    template_kwargs,
    text_value,
    token_id_list,
)
from batchgen.prompts.prompt import BadRow, Prompts
from batchgen.prompts.templates import ChatTemplate, RowTemplate
from batchgen.prompts.text_encoder import TextEncoder
from batchgen.spec.user_template import parse_system_template, parse_user_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from batchgen.io.input.rows import Row, RowBatch
    from batchgen.spec.job_spec import InputSpec


class RowEncoder:
    """Encodes the rows of one job. Only its arguments are pickled: another process builds its own encoder from them.

    `vocab_size` is the model's number of token ids. `clock` is the time that templates print, the same in every row.
    A chat ends with the template's generation prompt, or inside its last message with `input.continue_final_message`.
    Raises ModelError for a chat job on a tokenizer without a chat template, SpecError for a bad template.
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
        self._user_template, self._system_template = _row_templates(spec)
        is_chat = spec.text is None and spec.token_ids is None
        self._chat_template = ChatTemplate(tokenizer, spec, clock) if is_chat else None
        column = spec.prompt or spec.messages or spec.text or spec.token_ids
        self._prompt_source = "input.template" if column is None else f"column {column!r}"
        limits = {"vocab_size": vocab_size, "max_model_len": max_model_len}
        self._rebuild = partial(RowEncoder, tokenizer, spec, **limits, clock=clock)

    def __reduce__(self) -> tuple[Callable[[], RowEncoder], tuple[()]]:
        return self._rebuild, ()

    def unread_keys(self) -> list[str]:
        """Return the keys of the job file whose values the chat template does not read."""
        if self._chat_template is None:
            return []
        spec, given = self.spec, self.spec.chat_template_kwargs
        names = {name: f"input.chat_template_kwargs.{name}" for name in (given if isinstance(given, Mapping) else ())}
        names |= {name: f"input.{name}" for name in ("tools", "documents") if getattr(spec, name) is not None}
        return [names[name] for name in self._chat_template.unread(names)]

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
        chat = self._chat(values)
        with _prefixed_error(self._prompt_source):
            return self._encode_chat(chat)

    def _chat(self, values: Values) -> Chat:
        spec = self.spec
        return Chat(
            self._messages(values),
            tools=_objects(values, spec.tools, "tools"),
            documents=_objects(values, spec.documents, "documents"),
            kwargs=_template_kwargs(values, spec.chat_template_kwargs),
        )

    def _messages(self, values: Values) -> list[Message]:
        spec = self.spec
        if spec.messages is not None:
            messages = message_list(values, spec.messages)
            with _prefixed_error(self._prompt_source):
                check_last_message(messages, is_continued=spec.continue_final_message)
            return messages
        if self._user_template is not None:
            user = self._user_template.render(values)
        else:
            assert spec.prompt is not None
            user = text_value(values, spec.prompt)
        if self._system_template is not None:
            return chat_of(self._system_template.render(values), user)
        return chat_of(system_value(values, spec.system), user)

    def _encode_chat(self, chat: Chat) -> list[int]:
        assert self._chat_template is not None
        control = self._text_encoder.control_tokens
        rendered, texts = self._chat_template.render(chat), list(texts_of(chat))
        possible = control.possible(rendered, texts)
        if not possible:
            return self._text_encoder.encode_chat(rendered)
        marks = control.marks([*texts, *self._chat_template.sources])
        marked = self._chat_template.render(marks.mark(chat), marks)
        if marks.restore(marked) != rendered:
            strings = dict.fromkeys(string for text in texts for string in control.strings(text)) or possible
            raise TemplateError(
                f"{self._chat_template.name} changes {', '.join(map(repr, strings))} of this row in a way that cannot "
                "be followed, so that the row's own text might become a control token"
            )
        return self._text_encoder.encode_chat(marked, marks)

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


def _row_templates(spec: InputSpec) -> tuple[RowTemplate | None, RowTemplate | None]:
    """Return the templates of the user turn and of the system message. Raises SpecError."""
    user, system = spec.template, spec.system_template
    return (
        None if user is None else RowTemplate(parse_user_template(user), "input.template"),
        None if system is None else RowTemplate(parse_system_template(system), "input.system_template"),
    )


def _objects(values: Values, given: str | Sequence[Any] | None, name: str) -> list[Any] | None:
    """Return the tools or documents of a row: those in its column, or those of the job file."""
    if isinstance(given, str):
        return object_list(values, given, name)
    return None if given is None else list(given)


def _template_kwargs(values: Values, given: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(given, str):
        return template_kwargs(values, given)
    return {name: value for name, value in (given or {}).items() if value is not None}


@contextmanager
def _prefixed_error(prefix: str) -> Iterator[None]:
    """Put `prefix` before the message of a RowError."""
    try:
        yield
    except RowError as error:
        raise type(error)(f"{prefix}: {error}") from error.__cause__
