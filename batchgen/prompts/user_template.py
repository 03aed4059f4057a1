"""`input.template`: a sandboxed Jinja template over a row's columns that makes the user turn.

Only the columns are in reach: no globals, no dunder attributes, no randomness. The values are data: they are put in
as they are, never read as template text. A column that is missing or null where it is printed is a TemplateError.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import SpecError, TemplateError
from batchgen.prompts.messages import Values


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
