"""Parses `input.template` and `input.system_template`: sandboxed Jinja over a row's columns. Knows no row.

A template can reach only the columns: no globals, no dunder attributes, no randomness. Values are data: they are
inserted unchanged and never parsed as a template. Printing a column that is missing or null raises an error.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import SpecError


class ParsedTemplate(NamedTuple):
    """A template and the columns that it reads."""

    template: Template
    columns: frozenset[str]


def parse_user_template(source: str) -> ParsedTemplate:
    """Parse the value of `input.template`.

    Raises SpecError, naming the line of the template, for a syntax error, and for a template that reads no column.
    """
    parsed = _parse(source, "input.template")
    if not parsed.columns:
        plain = ", ".join(sorted(set(re.findall(r"\{\w+\}", source))))
        hint = f"; {plain} is plain text here" if plain else ""
        raise SpecError([f"input.template reads no column; write a column as {{{{ column }}}}{hint}"])
    return parsed


def parse_system_template(source: str) -> ParsedTemplate:
    """Parse the value of `input.system_template`, which may be plain text. Raises SpecError for a syntax error."""
    return _parse(source, "input.system_template")


def _parse(source: str, key: str) -> ParsedTemplate:
    environment = _environment()
    try:
        syntax_tree = environment.parse(source)
        columns = frozenset(meta.find_undeclared_variables(syntax_tree))
        template = environment.from_string(syntax_tree)
    except TemplateSyntaxError as error:
        raise SpecError([f"{key} line {error.lineno}: {error.message}"]) from None
    return ParsedTemplate(template, columns)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_refuse_null
    )
    environment.globals.clear()  # every name is a column, even `range`
    del environment.filters["random"]  # the same row must give the same prompt
    return environment


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("a null cannot be printed; test for it with {% if column is not none %}")
    return value
