"""Renders the two templates that make a prompt: the model's own chat template, and the user's `input.template`.

transformers renders the chat template, with a fixed clock. `input.template` makes the user turn from a row's columns
(`spec/user_template.py` says what it can reach).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from batchgen.errors import ModelError, TemplateError
from batchgen.prompts.messages import Message, Values
from batchgen.spec.user_template import parse_user_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplate:
    """Renders the chats of one job. Raises ModelError if the tokenizer has no chat template.

    `strftime_now` formats `clock` in every row: otherwise rows that print the time would share no prefix, and a job
    could not be repeated.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, clock: datetime) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self.source = _source(tokenizer)

    def render(self, messages: list[Message]) -> str:
        """Return the chat as text that ends with the generation prompt. Raises TemplateError with the reason."""
        try:
            with self._fixed_clock():
                rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is the model's program, so whatever it raises concerns this row
            raise TemplateError(f"the model's chat template: {error}") from error
        assert isinstance(rendered, str)
        return rendered

    @contextmanager
    def _fixed_clock(self) -> Iterator[None]:
        """Shadow `strftime_now` in the compiled template that transformers caches; callers cannot pass a function."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        template_globals = _compile_jinja_template(self.source).globals
        template_globals["strftime_now"] = self._clock.strftime
        try:
            yield
        finally:
            del template_globals["strftime_now"]


def _source(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:  # there is none, or several without a default
        raise ModelError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template to use; "
            f"name the column with input.text instead to send raw text ({error})"
        ) from None


class UserTemplate:
    """Renders `input.template`. Raises SpecError if it is broken or reads no column."""

    def __init__(self, source: str) -> None:
        self._template, self._columns = parse_user_template(source)

    def render(self, values: Values) -> str:
        """Return the user turn of one row. Raises TemplateError with the reason."""
        try:
            return self._template.render(values)
        except Exception as error:  # a template is the user's program, so whatever it raises concerns this row
            nulls = sorted(name for name in self._columns if name in values and values[name] is None)
            hint = f" (null here: {', '.join(nulls)})" if nulls else ""
            raise TemplateError(f"input.template: {error}{hint}") from error
