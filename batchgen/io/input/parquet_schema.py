"""Schemas of Parquet files: one for all of them, and what the prompt columns may be. Reads no rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.input.columns import PromptColumns, missing_column
from batchgen.io.remote import Location

_TEXT = {pa.string(), pa.large_string(), pa.string_view()}
_BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}
_IS_LIST = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def unify(paths: Sequence[Location], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all files: columns by name, the first file's first; null yields to any type, numbers widen.

    Every field is nullable, since a file may lack it. Raises InputError for a name that a file has twice and for a
    column whose types do not go together.
    """
    fields: dict[str, pa.Field] = {}
    defined_in: dict[str, Location] = {}  # column -> the file whose type stands for it in messages
    for path, schema in zip(paths, schemas, strict=True):
        _refuse_doubled(path, schema.names)
        for field in schema:
            known = fields.get(field.name)
            if known is None or pa.types.is_null(known.type):
                defined_in[field.name] = path
            merged = field.type if known is None else _merge(known, field, defined_in[field.name], path)
            metadata = field.metadata if known is None else known.metadata
            fields[field.name] = pa.field(field.name, merged, nullable=True, metadata=metadata)
    return pa.schema(fields.values())


def check_prompt_columns(path: Location, schema: pa.Schema, columns: PromptColumns) -> None:
    """Raise InputError for a named column that the file lacks, or whose type makes no prompt."""
    for column, setting in columns.settings.items():
        if column not in schema.names:
            raise missing_column(path, setting, column, schema.names)
        type = _storage(schema.field(column).type)
        needed = _what_is_needed(setting, type)
        if needed is not None and not pa.types.is_null(type):
            raise InputError(f"{path}: column {column!r} is {type}; input.{setting} needs {needed}")


def _refuse_doubled(path: Location, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{path}: more than one column is called {', '.join(map(repr, doubled))}; rename all but one")


def _merge(known: pa.Field, field: pa.Field, known_path: Location, path: Location) -> pa.DataType:
    try:
        pair = [pa.schema([each.remove_metadata()]) for each in (known, field)]
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        if _is_text(known.type) and _is_text(field.type):  # Arrow knows no common type of a dictionary and a string
            return pa.large_string()
        raise InputError(
            f"column {field.name!r} is {known.type} in {known_path} and {field.type} in {path}; convert one of them"
        ) from error


def _what_is_needed(setting: str, type: pa.DataType) -> str | None:
    """What the setting needs, in words, if the type is not that."""
    if setting in ("prompt", "system", "text") and not _is_text_or_bytes(type):
        return "text"
    if setting == "messages" and not (_is_text_or_bytes(type) or _is_list_of(type, pa.types.is_struct)):
        return "a list of {role, content}, or text that holds one as JSON"
    if setting == "sampling" and not (_is_text_or_bytes(type) or pa.types.is_struct(type)):
        return "a struct of sampling keys, or text that holds one as JSON"
    if setting == "token_ids" and not _is_list_of(type, pa.types.is_integer):
        return "a list of integers"
    return None


def _is_text(type: pa.DataType) -> bool:
    return (type.value_type if pa.types.is_dictionary(type) else type) in _TEXT


def _is_text_or_bytes(type: pa.DataType) -> bool:
    return _is_text(type) or (type.value_type if pa.types.is_dictionary(type) else type) in _BYTES


def _is_list_of(type: pa.DataType, is_item: Callable[[pa.DataType], bool]) -> bool:
    return any(is_list(type) for is_list in _IS_LIST) and (
        is_item(type.value_type) or pa.types.is_null(type.value_type)
    )


def _storage(type: pa.DataType) -> pa.DataType:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type
