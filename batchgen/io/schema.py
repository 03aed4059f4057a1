"""The one place that names the columns batchgen writes, and their types. All are always written."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import batchgen
from batchgen.errors import OutputError
from batchgen.io import json_values
from batchgen.io.files import Format

# The journal's columns are the fields of RequestOutput, so that a committed row can be made from one and read back.
_ROW_INDEX = pa.field("row_index", pa.int64(), nullable=False)
_ADDED = (
    pa.field("completion", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("error", pa.string()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("cached_tokens", pa.int32()),
    pa.field("sample_index", pa.int32()),
)
# What a reader of the output finds in the field metadata, under "description".
_DESCRIPTIONS = {
    "completion": "the generated text; null if the row failed before its first token",
    "finish_reason": "stop (an end token or a stop text), length (max_tokens or the context limit) or error",
    "error": "why the row failed, with its file, its line or row, and its column; null otherwise",
    "prompt_tokens": "tokens of the prompt as the model saw it; null if it was never tokenised",
    "completion_tokens": "generated tokens, end tokens included",
    "cached_tokens": "prompt tokens whose keys and values were reused and not computed again",
    "sample_index": "number of this sample among those of its row, from 0",
}
JOURNAL_SCHEMA = pa.schema([_ROW_INDEX, *_ADDED])
ADDED_COLUMNS = tuple(field.name for field in _ADDED)


def output_schema(input_schema: pa.Schema, prefix: str, format: Format = "parquet") -> pa.Schema:
    """The input's columns, then ours with `output.prefix` in front.

    Raises OutputError if two have one name, or if `output.format` cannot hold a column's type.
    """
    if format == "jsonl":
        json_values.check_types(input_schema)
    added = [
        field.with_name(prefix + field.name).with_metadata({"description": _DESCRIPTIONS[field.name]})
        for field in _ADDED
    ]
    taken = [field.name for field in added if field.name in input_schema.names]
    if taken:
        raise OutputError(
            f"the input already has {'columns' if len(taken) > 1 else 'a column'} named {', '.join(taken)}; "
            f"set output.prefix (now {prefix!r}, for example 'gen_') to rename the columns that batchgen adds"
        )
    return pa.schema([*input_schema, *added])


def with_origin(schema: pa.Schema, origin: Mapping[str, str]) -> pa.Schema:
    """The schema of a file that says what wrote it: batchgen's version, and what `origin` tells of the run."""
    told = {f"batchgen.{key}": value for key, value in origin.items()}
    return schema.with_metadata({"batchgen": batchgen.__version__, **told})
