"""Schemas of Parquet files: one for all of them, and what the prompt columns may be. Reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.columns import PromptColumns, missing_column

_TEXT = {pa.string(), pa.large_string(), pa.string_view()}
_BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}


def unify(paths: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all files: columns by name, the first file's first; null yields to any type, numbers widen.

    Every field is nullable, since a file may lack it. Raises InputError for a name that a file has twice and for a
    column whose types do not go together.
    """
    fields: dict[str, pa.Field] = {}
    origins: dict[str, Path] = {}  # column -> the file whose type stands for it in messages
    for path, schema in zip(paths, schemas, strict=True):
        _refuse_doubled(path, schema.names)
        for field in schema:
            known = fields.get(field.name)
            if known is None or pa.types.is_null(known.type):
                origins[field.name] = path
            merged = field.type if known is None else _merge(known, field, origins[field.name], path)
            metadata = field.metadata if known is None else known.metadata
            fields[field.name] = pa.field(field.name, merged, nullable=True, metadata=metadata)
    return pa.schema(fields.values())


def check_prompt_columns(path: Path, schema: pa.Schema, columns: PromptColumns) -> None:
    """Raise InputError for a named column that the file lacks, or whose type makes no prompt."""
    for column, setting in columns.settings.items():
        if column not in schema.names:
            raise missing_column(path, setting, column, schema.names)
        type = _storage(schema.field(column).type)
        expected = _expected(setting, type)
        if expected is not None and not pa.types.is_null(type):
            raise InputError(f"{path}: column {column!r} is {type}; input.{setting} needs {expected}")


def _refuse_doubled(path: Path, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{path}: more than one column is called {', '.join(map(repr, doubled))}; rename all but one")


def _merge(known: pa.Field, field: pa.Field, known_path: Path, path: Path) -> pa.DataType:
    if _is_text(known.type) and _is_text(field.type) and known.type != field.type:
        return pa.large_string()
    try:
        pair = [pa.schema([each.remove_metadata()]) for each in (known, field)]
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        raise InputError(
            f"column {field.name!r} is {known.type} in {known_path} and {field.type} in {path}; convert one of them"
        ) from error


def _expected(setting: str, type: pa.DataType) -> str | None:
    """What the setting needs, in words, if the type is not that."""
    if setting in ("prompt", "system", "text"):
        return None if _is_text_like(type) else "text"
    if setting == "messages":
        is_messages = _is_text_like(type) or _is_list_of(type, pa.types.is_struct)
        return None if is_messages else "a list of {role, content}, or text that holds one as JSON"
    if setting == "token_ids":
        return None if _is_list_of(type, pa.types.is_integer) else "a list of integers"
    return None
