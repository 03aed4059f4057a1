"""PromptEncoder: a row to the token ids of its prompt. Knows the tokenizer, its chat template and the input's columns."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from batchgen.errors import ModelError, RowError
from batchgen.io.rows import Row
from batchgen.job.spec import InputSpec
from batchgen.prompts.messages import (
    Message,
    Values,
    chat_of,
    message_list,
    system_value,
    text_value,
    token_id_list,
)
from batchgen.prompts.text_encoder import TextEncoder
from batchgen.prompts.user_template import UserTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """Encodes the rows of one job.

    `vocab_size` is the number of ids the model has. `clock` is what templates that print the time see, in every row.
    A chat always ends with the template's generation prompt, also where its last message is the assistant's.
    Raises ModelError for a chat job on a tokenizer without a chat template, SpecError for a broken `input.template`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, spec: InputSpec, *, vocab_size: int, clock: datetime
    ) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._vocab_size = vocab_size
        self._clock = clock
        self._text_encoder = TextEncoder(tokenizer)
        self._user_template = None if spec.template is None else UserTemplate(spec.template)
        is_chat = spec.text is None and spec.token_ids is None
        self._chat_template = _chat_template(tokenizer) if is_chat else ""

    def encode(self, row: Row) -> list[int]:
        """The prompt's token ids, at least one; RowError, naming the row's place and column, where it has none."""
        assert row.error is None, "a row that could not be read has no prompt"
        try:
            token_ids = self._token_ids(row.values)
            self._check(token_ids)
        except RowError as error:
            raise RowError(f"{row.place}: {error}") from error.__cause__
        return token_ids

    def _token_ids(self, values: Values) -> list[int]:
        spec = self._spec
        if spec.token_ids is not None:
            return token_id_list(values, spec.token_ids)
        if spec.text is not None:
            return self._text_encoder.encode_raw(text_value(values, spec.text))
        messages, literals = self._text_encoder.control_tokens.hide(
            self._messages(values), also_used=self._chat_template
        )
        return self._text_encoder.encode_chat(self._render(messages), literals)

    def _messages(self, values: Values) -> list[Message]:
        spec = self._spec
        if spec.messages is not None:
            return message_list(values, spec.messages)
        if self._user_template is not None:
            user = self._user_template.render(values)
        else:
            assert spec.prompt is not None
            user = text_value(values, spec.prompt)
        return chat_of(system_value(values, spec.system), user)

    def _render(self, messages: list[Message]) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, strftime_now=self._clock.strftime
            )
        except Exception as error:  # a template is a program of the model's; whatever it raises is about this row
            raise RowError(f"the model's chat template: {error}") from error
        assert isinstance(rendered, str)
        return rendered

    def _check(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RowError("the prompt has no tokens")
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            position = next(n for n, token_id in enumerate(token_ids) if not 0 <= token_id < self._vocab_size)
            raise RowError(
                f"token_ids[{position}] is {token_ids[position]}, the model's ids go from 0 to {self._vocab_size - 1}"
            )


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:  # there is none, or several and none of them is the default
        raise ModelError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template to use; "
            f"name the column with input.text instead to send raw text ({error})"
        ) from None
