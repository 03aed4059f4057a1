"""Schemas of Parquet files: unifies those of all files and checks the prompt columns. Reads no rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.arrow_types import is_bytes, is_extension, is_list, is_text, repeated_field
from batchgen.io.input.columns import PromptColumns, find_path, inner_fields, missing_column
from batchgen.io.input.folders import Partition
from batchgen.io.remote import Location


def unify(paths: Sequence[Location], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return one schema for all files: columns by name, the first file's first; null yields to any type, numbers widen.

    Every field is nullable, since a file may lack it. Raises InputError for a name that a file has twice and for a
    column whose types cannot be unified.
    """
    fields: dict[str, pa.Field] = {}
    defined_in: dict[str, Location] = {}  # column -> the file that messages name for its type
    for path, schema in zip(paths, schemas, strict=True):
        _refuse_duplicates(path, schema.names)
        for field in schema:
            known = fields.get(field.name)
            if known is None or pa.types.is_null(known.type):
                defined_in[field.name] = path
            merged = field.type if known is None else _merge(known, field, defined_in[field.name], path)
            metadata = field.metadata if known is None else known.metadata
            fields[field.name] = pa.field(field.name, merged, nullable=True, metadata=metadata)
    return pa.schema(fields.values())


def with_partition(schema: pa.Schema, partition: Partition) -> pa.Schema:
    """Return a schema that ends with the columns that folder names give, as text, apart from those that it has."""
    given = [pa.field(name, pa.string()) for name in partition if name not in schema.names]
    return pa.schema([*schema, *given])


def check_prompt_columns(path: Location, schema: pa.Schema, unified: pa.Schema, columns: PromptColumns) -> None:
    """Raise InputError for a named column that the file lacks, or whose type does not fit its setting."""
    for column, setting in columns.settings.items():
        steps = _steps(schema, column)
        if steps is None:
            raise missing_column(path, setting, column, list(schema))
        if [step.name for step in steps] != [step.name for step in _steps(unified, column) or ()]:
            raise InputError(f"{path}: {column!r} is a field of {steps[0].name!r}, and in another file a column")
        repeated = repeated_field(steps[0].type)
        if repeated is not None:
            raise InputError(f"{path}: column {steps[0].name!r} has more than one field named {repeated!r}; rename one")
        type = _storage(steps[-1].type)
        needed = _expected_type(setting, type)
        if needed is not None and not pa.types.is_null(type):
            raise InputError(f"{path}: column {column!r} is {type}; input.{setting} needs {needed}")


def _steps(schema: pa.Schema, column: str) -> list[pa.Field] | None:
    """Return the fields that lead to a column, from the outermost; None if there is no such column."""
    fields, steps = list(schema), []
    for i in find_path(fields, column) or ():
        steps.append(fields[i])
        fields = inner_fields(fields[i])
    return steps or None


def _refuse_duplicates(path: Location, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: more than one column is named {', '.join(map(repr, repeated))}; rename all but one")


def _merge(known: pa.Field, field: pa.Field, known_path: Location, path: Location) -> pa.DataType:
    try:
        pair = [pa.schema([each.remove_metadata()]) for each in (known, field)]
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        if is_text(_decoded(known.type)) and is_text(_decoded(field.type)):  # Arrow cannot unify dictionary and string
            return pa.large_string()
        raise InputError(
            f"column {field.name!r} is {known.type} in {known_path} and {field.type} in {path}; convert one of them"
        ) from error


def _expected_type(setting: str, type: pa.DataType) -> str | None:
    """Describe the type that the setting needs; None if `type` fits."""
    if setting in ("prompt", "system", "text") and not _is_text_or_bytes(type):
        return "text"
    if setting == "messages" and not (_is_text_or_bytes(type) or _is_list_of(type, _is_object)):
        return "a list of {role, content}, or text that holds one as JSON"
    if setting == "sampling" and not (_is_text_or_bytes(type) or _is_object(type)):
        return "a struct of sampling keys, or text that holds one as JSON"
    if setting in ("tools", "documents") and not (_is_text_or_bytes(type) or _is_list_of(type, _is_object)):
        return "a list of objects, or text with one as JSON"
    if setting == "chat_template_kwargs" and not (_is_text_or_bytes(type) or _is_object(type)):
        return "a struct of variables, or text with one as JSON"
    if setting == "token_ids" and not _is_list_of(type, pa.types.is_integer):
        return "a list of integers"
    return None


def _decoded(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


def _is_text_or_bytes(type: pa.DataType) -> bool:
    return is_text(_decoded(type)) or is_bytes(_decoded(type))


def _is_list_of(type: pa.DataType, is_item: Callable[[pa.DataType], bool]) -> bool:
    return is_list(type) and (is_item(type.value_type) or pa.types.is_null(type.value_type))


def _is_object(type: pa.DataType) -> bool:
    return isinstance(type, pa.JsonType) or bool(pa.types.is_struct(type) or pa.types.is_map(type))


def _storage(type: pa.DataType) -> pa.DataType:
    return type.storage_type if is_extension(type) else type
