"""The columns that batchgen writes: names, types and descriptions. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

import batchgen
from batchgen.errors import OutputError
from batchgen.io.input.files import Format
from batchgen.io.output import json_values

# The columns of the journal are the fields of RequestOutput, in the order in which files have them.
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
    pa.field("reasoning", pa.string()),
    pa.field("reasoning_tokens", pa.int32()),
    pa.field("completion_token_ids", pa.list_(pa.int32())),
    pa.field("logprobs", _LOGPROBS),
    pa.field("prompt_logprobs", _LOGPROBS),
)
EXPORT_SCHEMA = pa.schema([_ROW_INDEX, *_ADDED, *_OPTIONAL])
JOURNAL_SCHEMA = EXPORT_SCHEMA.append(pa.field("origin", pa.list_(pa.int64())))
# Written to the metadata of each output field, under "description".
_DESCRIPTIONS = {
    "completion": "the generated text; null if the row failed before its first token, or ended before its answer",
    "finish_reason": "stop (an end token or a stop text), length (max_tokens or the context limit) or error",
    "error": "why the row failed, with its file, its line or row, and its column; null otherwise",
    "prompt_tokens": "tokens of the prompt as given to the model; null if it was never tokenised",
    "completion_tokens": "generated tokens, end tokens included",
    "cached_tokens": "prompt tokens whose keys and values were reused and not computed again",
    "sample_index": "number of this sample among those of its row, from 0",
    "reasoning": "the thinking before the answer, without its tags; null if the completion did not think",
    "reasoning_tokens": "generated tokens before the answer, tags included; 0 if the completion did not think",
    "completion_token_ids": "ids of the generated tokens, end tokens included",
    "logprobs": "for each generated token its log-probability and rank under the model, and the most likely tokens",
    "prompt_logprobs": "the same for each token of the prompt; the first token has none",
}


def added_columns(optional: Collection[str] = ()) -> list[str]:
    """Return the columns that every output has and the `optional` ones, in the order in which they are written."""
    return [field.name for field in _ADDED] + [field.name for field in _OPTIONAL if field.name in optional]


def output_schema(
    input_schema: pa.Schema, prefix: str, format: Format = "parquet", optional: Collection[str] = ()
) -> pa.Schema:
    """Return the input's columns followed by the added ones, whose names start with `prefix`.

    Raises OutputError if two columns have the same name, or if `output.format` cannot hold a column's type.
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
    """Return the schema with metadata on what wrote the file: batchgen's version and the entries of `provenance`."""
    metadata = {f"batchgen.{key}": value for key, value in provenance.items()}
    return schema.with_metadata({"batchgen": batchgen.__version__, **metadata})
