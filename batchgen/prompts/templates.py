"""Renders the templates that make a prompt: the chat template, and the user's templates of single turns.

transformers renders the chat template, with a fixed clock. `input.template` and `input.system_template` make a turn
from a row's columns (`spec/user_template.py` says what they can reach).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError, meta
from jinja2.runtime import Context

from batchgen.errors import ModelError, SpecError, TemplateError
from batchgen.prompts.marks import NO_MARKS, Marks
from batchgen.prompts.messages import Chat, Message, Values
from batchgen.spec.chat_template import is_template
from batchgen.spec.user_template import ParsedTemplate

if TYPE_CHECKING:
    from jinja2 import Template
    from transformers import PreTrainedTokenizerBase

    from batchgen.spec.job_spec import InputSpec

_MAX_ERROR_CHARS = 400


class ChatTemplate:
    """Renders the chats of one job with the template that `input.chat_template` chooses.

    `strftime_now` formats `clock` in every row: otherwise rows that print the time would share no prefix, and a job
    could not be repeated. Raises ModelError or SpecError if there is no such template, or if it is broken.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spec: InputSpec, clock: datetime) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._is_continued = spec.continue_final_message
        self._source, self._source_with_tools = _choose_templates(tokenizer, spec)
        self.name = "the model's chat template" if spec.chat_template is None else "input.chat_template"
        for source in self.sources:
            _check_syntax(source, self.name)
        self._reads_parts = {source: self._reads_only_parts(source) for source in self.sources}

    @property
    def sources(self) -> list[str]:
        """The templates: that for chats with tools is often the same as that for others."""
        return list(dict.fromkeys((self._source, self._source_with_tools)))

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return the variables that no template reads."""
        parsed = [_compiled(source).environment.parse(source) for source in self.sources]
        return sorted(set(names).difference(*map(meta.find_undeclared_variables, parsed)))

    def render(self, chat: Chat, marks: Marks = NO_MARKS) -> str:
        """Return the chat as text that ends with the generation prompt, or inside the last message if it is continued.

        The chat has the characters of `marks` in its texts, and so has the result. Raises TemplateError.
        """
        source = self._source if chat.tools is None else self._source_with_tools
        messages = [_in_parts(message) for message in chat.messages] if self._reads_parts[source] else chat.messages
        try:
            with _hooked(_compiled(source), self._clock, marks):
                rendered = self._tokenizer.apply_chat_template(
                    messages,
                    tools=chat.tools,
                    documents=chat.documents,
                    chat_template=source,
                    tokenize=False,
                    add_generation_prompt=not self._is_continued,
                    continue_final_message=self._is_continued,
                    **chat.kwargs,
                )
        except Exception as error:  # a template is the model's program, so whatever it raises concerns this row
            text = str(error)
            shown = (
                text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "…"
            )  # it may have the whole chat
            raise TemplateError(f"{self.name}: {shown}") from error
        assert isinstance(rendered, str)
        return str.__str__(rendered)

    def _reads_only_parts(self, source: str) -> bool:
        """Return whether a text vanishes in a template unless it is in a list of parts: some multimodal models."""
        first, second = ({"role": "user", "content": text} for text in ("one text", "another text"))
        try:
            vanishes = self._try(source, first) == self._try(source, second)
            return vanishes and bool(self._try(source, _in_parts(first)) != self._try(source, _in_parts(second)))
        except Exception:  # it may need arguments, or another first message
            return False

    def _try(self, source: str, message: Message) -> Any:
        with _hooked(_compiled(source), self._clock, NO_MARKS):
            return self._tokenizer.apply_chat_template([message], chat_template=source, tokenize=False)


def _in_parts(message: Message) -> Message:
    """Return a message with a text content as a list of one text part."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _choose_templates(tokenizer: PreTrainedTokenizerBase, spec: InputSpec) -> tuple[str, str]:
    """Return the template for chats without tools and that for chats with tools."""
    chosen, own = spec.chat_template, tokenizer.chat_template
    if chosen is not None and is_template(chosen):
        return chosen, chosen
    if chosen is not None:
        template = _named(chosen, own if isinstance(own, dict) else {})
        return template, template
    if isinstance(own, str):
        return own, own
    if not own:
        raise ModelError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template to use; give one with input.chat_template, "
            "or name the column with input.text instead to send raw text"
        )
    with_tools = own.get("tool_use", own.get("default"))
    without_tools = own.get("default", with_tools if isinstance(spec.tools, tuple) else None)
    if with_tools is None or without_tools is None:
        raise ModelError(
            f"{tokenizer.name_or_path}: has the chat templates {', '.join(sorted(own))} and none is called default; "
            "choose one with input.chat_template"
        )
    return without_tools, with_tools


def _named(name: str, named: Mapping[str, str]) -> str:
    if name in named:
        return named[name]
    nearest = difflib.get_close_matches(name, named, n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    known = f"its chat templates are {', '.join(sorted(named))}" if named else "it has no chat templates with names"
    raise SpecError([f"input.chat_template: the model has no chat template {name!r}; {hint}{known}; or give a file"])


def _compiled(source: str) -> Template:
    """Return the compiled template that transformers caches; callers cannot pass it functions."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template: Template = _compile_jinja_template(source)
    return template


def _check_syntax(source: str, name: str) -> None:
    try:
        _compiled(source)
    except TemplateSyntaxError as error:
        raise SpecError([f"{name} line {error.lineno}: {error.message}"]) from None


@contextmanager
def _hooked(template: Template, clock: datetime, marks: Marks) -> Iterator[None]:
    """Shadow `strftime_now` in a template, and let it see marked texts as what they stand for."""
    environment, code = template.environment, template.root_render_func.__globals__
    str_join = code["str_join"]
    template.globals["strftime_now"] = clock.strftime
    if marks:
        # Where texts are joined, in macros, blocks and with ~, the result is a plain text again.
        environment.concat = lambda texts: marks.track("".join(texts))  # type: ignore[method-assign]
        code["str_join"] = lambda texts: marks.track(str_join(texts))
        environment.context_class = partial(_marked_context, marks)  # type: ignore[assignment]
    try:
        yield
    finally:
        del template.globals["strftime_now"]
        if marks:
            code["str_join"] = str_join
            del environment.concat, environment.context_class


def _marked_context(marks: Marks, environment: Any, variables: dict[str, Any], *others: Any, **named: Any) -> Context:
    return Context(environment, marks.track(variables), *others, **named)


class RowTemplate:
    """Renders `input.template` or `input.system_template`, which `key` names."""

    def __init__(self, parsed: ParsedTemplate, key: str) -> None:
        self._template, self._columns = parsed
        self._key = key

    def render(self, values: Values) -> str:
        """Return the turn of one row. Raises TemplateError with the reason."""
        try:
            return self._template.render(values)
        except Exception as error:  # a template is the user's program, so whatever it raises concerns this row
            nulls = sorted(name for name in self._columns if name in values and values[name] is None)
            hint = f" (null here: {', '.join(nulls)})" if nulls else ""
            raise TemplateError(f"{self._key}: {error}{hint}") from error
