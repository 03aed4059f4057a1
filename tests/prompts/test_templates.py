"""Rendering `input.template`: it reaches the columns and nothing else, and values stay data."""

from __future__ import annotations

import pytest

from batchgen.errors import RowError
from batchgen.prompts.templates import UserTemplate


def test_only_named_placeholders_are_replaced() -> None:
    template = UserTemplate('Reply as {"label": "..."} for {{ q }}\n')
    assert template.render({"q": "{{ 7*7 }} <b> {x}"}) == 'Reply as {"label": "..."} for {{ 7*7 }} <b> {x}\n'


def test_a_missing_column_is_named() -> None:
    with pytest.raises(RowError, match="'answer' is undefined"):
        UserTemplate("{{ question }} {{ answer }}").render({"question": "x"})


def test_a_null_is_not_printed() -> None:
    template = UserTemplate("{{ a }}{% if b is not none %}{{ b }}{% endif %}")
    assert template.render({"a": "x", "b": None}) == "x"
    with pytest.raises(RowError, match=r"a null cannot be printed.*null here: a\)"):
        template.render({"a": None, "b": "y"})


@pytest.mark.parametrize("source", ["{{ range(3) }}{{ a }}", "{{ a.__class__.__mro__ }}", "{{ namespace(x=a) }}"])
def test_a_template_reaches_only_the_columns(source: str) -> None:
    with pytest.raises(RowError):
        UserTemplate(source).render({"a": "x"})
