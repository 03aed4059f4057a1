"""`input.template`: which templates are refused, and which columns one reads."""

from __future__ import annotations

import pytest

from batchgen.errors import SpecError
from batchgen.spec.user_template import parse_user_template


def test_its_columns_are_the_names_it_reads() -> None:
    source = "{% for c in choices %}{{ c }}{{ q }}{% endfor %}{{ range }}"
    assert parse_user_template(source).columns == {"choices", "q", "range"}


def test_a_template_that_reads_no_column_is_refused() -> None:
    with pytest.raises(SpecError, match=r"reads no column.*\{prompt\} is plain text"):
        parse_user_template('Reply as {"label": "..."} for {prompt}')


@pytest.mark.parametrize("source", ["{{ a }}\n{{ b", "{{ a }}\n{{ a | random }}"])
def test_a_syntax_error_and_a_random_choice_name_the_line(source: str) -> None:
    with pytest.raises(SpecError, match=r"input\.template line 2: "):
        parse_user_template(source)
