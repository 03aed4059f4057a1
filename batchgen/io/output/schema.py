"""The one place that names the columns batchgen writes, and their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

import batchgen
from batchgen.errors import OutputError
from batchgen.io.input.files import Format
from batchgen.io.output import json_values

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
_TOKEN = [("token_id", pa.int32()), ("token", pa.string()), ("logprob", pa.float32())]
_LOGPROBS = pa.list_(pa.struct([*_TOKEN, ("rank", pa.int32()), ("top", pa.list_(pa.struct(_TOKEN)))]))
_OPTIONAL = (
    pa.field("completion_token_ids", pa.list_(pa.int32())),
    pa.field("logprobs", _LOGPROBS),
    pa.field("prompt_logprobs", _LOGPROBS),
)
EXPORT_SCHEMA = pa.schema([_ROW_INDEX, *_ADDED, *_OPTIONAL])
JOURNAL_SCHEMA = EXPORT_SCHEMA.append(pa.field("origin", pa.list_(pa.int64())))
# What a reader of the output finds in the field metadata, under "description".
_DESCRIPTIONS = {
    "completion": "the generated text; null if the row failed before its first token",
    "finish_reason": "stop (an end token or a stop text), length (max_tokens or the context limit) or error",
    "error": "why the row failed, with its file, its line or row, and its column; null otherwise",
    "prompt_tokens": "tokens of the prompt as the model saw it; null if it was never tokenised",
    "completion_tokens": "generated tokens, end tokens included",
    "cached_tokens": "prompt tokens whose keys and values were reused and not computed again",
    "sample_index": "number of this sample among those of its row, from 0",
    "completion_token_ids": "ids of the generated tokens, end tokens included",
    "logprobs": "for each generated token its log-probability and rank under the model, and the most likely tokens",
    "prompt_logprobs": "the same for each token of the prompt; nothing is known of the first",
}


def added_columns(optional: Collection[str] = ()) -> list[str]:
    """The columns that every output has, and those `optional`, in the order they are written."""
    return [field.name for field in _ADDED] + [field.name for field in _OPTIONAL if field.name in optional]


def output_schema(
    input_schema: pa.Schema, prefix: str, format: Format = "parquet", optional: Collection[str] = ()
) -> pa.Schema:
    """The input's columns, then ours with `output.prefix` in front.

    Raises OutputError if two have one name, or if `output.format` cannot hold a column's type.
    """
    if format == "jsonl":
        json_values.check_types(input_schema)
    added = [
        JOURNAL_SCHEMA.field(name).with_name(prefix + name).with_metadata({"description": _DESCRIPTIONS[name]})
        for name in added_columns(optional)
    ]
    taken = [field.name for field in added if field.name in input_schema.names]
    if taken:
        raise OutputError(
            f"the input already has {'columns' if len(taken) > 1 else 'a column'} named {', '.join(taken)}; "
            f"set output.prefix (now {prefix!r}, for example 'gen_') to rename the columns that batchgen adds"
        )
    return pa.schema([*input_schema, *added])


def with_provenance(schema: pa.Schema, provenance: Mapping[str, str]) -> pa.Schema:
    """The schema of a file that says what wrote it: batchgen's version, and what `provenance` tells of the run."""
    told = {f"batchgen.{key}": value for key, value in provenance.items()}
    return schema.with_metadata({"batchgen": batchgen.__version__, **told})
