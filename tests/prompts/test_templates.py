"""Rendering `input.template`: it reaches the columns and nothing else, and values stay data."""

from __future__ import annotations

import pytest

from batchgen.errors import RowError, TemplateError
from batchgen.prompts.templates import RowTemplate
from batchgen.spec.user_template import parse_system_template, parse_user_template


def user_template(source: str) -> RowTemplate:
    return RowTemplate(parse_user_template(source), "input.template")


def test_only_named_placeholders_are_replaced() -> None:
    template = user_template('Reply as {"label": "..."} for {{ q }}\n')
    assert template.render({"q": "{{ 7*7 }} <b> {x}"}) == 'Reply as {"label": "..."} for {{ 7*7 }} <b> {x}\n'


def test_a_missing_column_is_named() -> None:
    with pytest.raises(RowError, match="'answer' is undefined"):
        user_template("{{ question }} {{ answer }}").render({"question": "x"})


def test_a_null_is_not_printed() -> None:
    template = user_template("{{ a }}{% if b is not none %}{{ b }}{% endif %}")
    assert template.render({"a": "x", "b": None}) == "x"
    with pytest.raises(RowError, match=r"a null cannot be printed.*null here: a\)"):
        template.render({"a": None, "b": "y"})


@pytest.mark.parametrize("source", ["{{ range(3) }}{{ a }}", "{{ a.__class__.__mro__ }}", "{{ namespace(x=a) }}"])
def test_a_template_reaches_only_the_columns(source: str) -> None:
    with pytest.raises(RowError):
        user_template(source).render({"a": "x"})


def test_text_without_a_column_is_the_system_message_of_every_row() -> None:
    template = RowTemplate(parse_system_template("Be brief.\n{x}"), "input.system_template")
    assert template.render({}) == template.render({"x": 1}) == "Be brief.\n{x}"


def test_an_error_of_the_system_template_names_its_key() -> None:
    template = RowTemplate(parse_system_template("Write {{ lang }}."), "input.system_template")
    assert template.render({"lang": "German"}) == "Write German."
    with pytest.raises(TemplateError, match=r"input\.system_template: .*null here: lang"):
        template.render({"lang": None})
