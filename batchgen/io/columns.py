"""Which columns make the prompt, and how one of their values becomes plain Python.

Knows the settings of `input:`; knows no file format, and judges no prompt (the prompts room does).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta

from batchgen.errors import InputError, RowError
from batchgen.io import strict_json

if TYPE_CHECKING:
    from batchgen.job.spec import InputSpec

_SETTINGS = ("id", "system", "prompt", "messages", "text", "token_ids")
_WHOLE_ROW = "row"  # a template that uses this name may look at any column


@dataclass(frozen=True, slots=True)
class PromptColumns:
    """The columns a job reads to make its prompts."""

    settings: Mapping[str, str]  # column -> the setting under `input:` that names it; each must be there
    optional: frozenset[str] = frozenset()  # columns that hide a name Jinja has by itself, such as `range`
    whole_row: bool = False  # all columns, whatever they are called

    def is_used(self, column: str) -> bool:
        return self.whole_row or column in self.settings or column in self.optional

    def plain(self, column: str, value: Any) -> Any:
        """Plain Python value of a used column: bytes become text, messages become a list of dicts.

        Bytes of a column that only `whole_row` brings in stay bytes. Raises RowError naming the column.
        """
        if column not in self.settings:
            return value
        try:
            if isinstance(value, bytes):
                value = value.decode()
            return _plain_messages(value) if self.settings[column] == "messages" else value
        except UnicodeDecodeError as error:
            raise RowError(f"column {strict_json.quote(column)}: not valid UTF-8 at byte {error.start + 1}") from error
        except RowError as error:
            raise RowError(f"column {strict_json.quote(column)}: {error}") from error


def prompt_columns(spec: InputSpec) -> PromptColumns:
    """Columns that the job file names, directly or in its template. Raises InputError for a template that is not Jinja."""
    settings = {column: name for name in _SETTINGS if (column := getattr(spec, name)) is not None}
    if spec.template is None:
        return PromptColumns(settings)
    environment = jinja2.Environment()
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(spec.template))
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"input.template, line {error.lineno}: {error.message}") from error
    optional = names & environment.globals.keys()
    required = names - optional - {_WHOLE_ROW}
    return PromptColumns(
        {**dict.fromkeys(sorted(required), "template"), **settings}, frozenset(optional), not names or _WHOLE_ROW in names
    )


def missing_column(place: object, setting: str, column: str, present: Iterable[str]) -> InputError:
    """The error for a named column that is not there, with the nearest name."""
    names = list(present)
    nearest = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"{place}: no column {column!r} (input.{setting}); {hint}the columns are {', '.join(names)}")


def _plain_messages(value: Any) -> Any:
    """Messages without their null keys. A null `content` stays: the prompts room refuses it by name."""
    if isinstance(value, str):
        value = strict_json.parse(value)
        if strict_json.has_lone_surrogate(value):
            raise RowError("the JSON text has half a surrogate pair")
    if not isinstance(value, list):
        return value
    return [_without_nulls(message) if isinstance(message, dict) else message for message in value]


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None or key == "content"}
