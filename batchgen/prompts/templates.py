"""The two templates that make a prompt: the model's own chat template, and the user's `input.template`.

The chat template is rendered by transformers, under a clock that stands still. `input.template` is sandboxed Jinja
over a row's columns that makes the user turn. Only the columns are in reach of it: no globals, no dunder attributes,
no randomness. The values are data: they are put in as they are, never read as template text. A column that is missing
or null where it is printed is a TemplateError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import ModelError, SpecError, TemplateError
from batchgen.prompts.messages import Message, Values

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplate:
    """Renders the chats of one job; ModelError where the tokenizer has no template.

    `clock` is what `strftime_now` formats, in every row: rows that print the time would share no prefix otherwise,
    and a job could not be repeated.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, clock: datetime) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self.source = _source(tokenizer)

    def render(self, messages: list[Message]) -> str:
        """The chat as text, with the generation prompt at its end; TemplateError with the words of the template."""
        try:
            with self._frozen_clock():
                rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the model's; whatever it raises is about this row
            raise TemplateError(f"the model's chat template: {error}") from error
        assert isinstance(rendered, str)
        return rendered

    @contextmanager
    def _frozen_clock(self) -> Iterator[None]:
        """Shadow `strftime_now` in the compiled template that transformers keeps: it takes no function from callers."""
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
    except ValueError as error:  # there is none, or several and none of them is the default
        raise ModelError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template to use; "
            f"name the column with input.text instead to send raw text ({error})"
        ) from None


class UserTemplate:
    """A compiled template; SpecError where it is not one, or would make the same turn of every row."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            self.columns = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise SpecError([f"input.template line {error.lineno}: {error.message}"]) from None
        if not self.columns:
            plain = ", ".join(sorted(set(re.findall(r"\{\w+\}", source))))
            hint = f"; {plain} is plain text here" if plain else ""
            raise SpecError([f"input.template reads no column; one is written as {{{{ column }}}}{hint}"])

    def render(self, values: Values) -> str:
        """The user turn of one row; TemplateError with the words of the template."""
        try:
            return self._template.render(values)
        except Exception as error:  # a template is a program of the user's; whatever it raises is about this row
            nulls = sorted(name for name in self.columns if name in values and values[name] is None)
            hint = f" (null here: {', '.join(nulls)})" if nulls else ""
            raise TemplateError(f"input.template: {error}{hint}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_refuse_null
    )
    environment.globals.clear()
    del environment.filters["random"]  # the same row must give the same prompt
    return environment


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("a null cannot be printed; test for it with {% if column is not none %}")
    return value
