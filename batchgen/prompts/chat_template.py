"""The model's own chat template: messages to text. Rendered by transformers, under a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from batchgen.errors import ModelError, TemplateError
from batchgen.prompts.messages import Message

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
            with self._clock_standing_still():
                rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the model's; whatever it raises is about this row
            raise TemplateError(f"the model's chat template: {error}") from error
        assert isinstance(rendered, str)
        return rendered

    @contextmanager
    def _clock_standing_still(self) -> Iterator[None]:
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
