"""JobSpec: a validated job file. Knows every key of a job file; knows nothing of files, models or rows.

A key is listed here only if it works; any other is refused as unknown. Values that a model's own `generation_config`
may set are None here if the job file does not set them (`job/settings.py` resolves them and records their sources).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from batchgen.spec.chat_template import reserved_variables

# Tags of a union's branches. They appear in pydantic's error locations, from which `spec/problems.py` removes them.
TEXT_BRANCH, LIST_BRANCH, MAPPING_BRANCH = BRANCHES = ("<text>", "<list>", "<mapping>")
MAX_LOGPROBS = 1000  # per token; a whole vocabulary would be more data than the text of any job
# Reserved variable of a chat template -> what to do instead.
_INSTEAD = {
    **{name: f"; use input.{name}" for name in ("tools", "documents", "continue_final_message", "chat_template")},
    "messages": "; use input.messages",
    "add_generation_prompt": "; prompts end with the generation prompt unless input.continue_final_message is true",
}
_KEY_TO_PROMPT_SOURCES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("system", "system_template"), ("prompt", "template")),
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs", "tools", "documents"), ("prompt", "messages", "template")
    ),
    "continue_final_message": ("messages",),
}
DEVICE_PATTERN = r"auto|cpu|cuda(:[0-9]+)?"


def _as_list(value: Any) -> Any:
    """Convert one text to a list of one, and null to an empty list."""
    return [] if value is None else [value] if isinstance(value, str) else value


def _as_mapping(value: Any) -> Any:
    """Convert null to an empty mapping, and numeric token ids to text, which keys are in other file formats."""
    if value is None:
        return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else value


def _as_json(value: Any) -> Any:
    """Convert a schema written out as YAML to JSON text."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def _check_json_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError as error:
        raise ValueError(f"expected a JSON schema, written out or as JSON text; {error}") from None
    if not is_object:
        raise ValueError("expected a JSON schema, which is an object")
    return text


def _text_or_list(value: Any) -> str:
    return LIST_BRANCH if isinstance(value, Sequence) and not isinstance(value, str) else TEXT_BRANCH


def _check_variables(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in reserved_variables(kwargs):
        raise ValueError(f"{name} cannot be set here{_INSTEAD.get(name, '')}")
    return kwargs


def _check_device(value: str) -> str:
    if not re.fullmatch(DEVICE_PATTERN, value):
        raise ValueError("expected auto, cpu, cuda or cuda:1")
    return value


# The sections are strict: the text "16" and `true` are not numbers, and 12.0 is not a whole number.
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
PositiveCount = Annotated[int, Field(ge=1, lt=2**31)]
Text = Annotated[str, Field(min_length=1)]
Frozen = AfterValidator(tuple)  # turns the list of the YAML file into a tuple
TextOrList = Annotated[
    Annotated[Text, Tag(TEXT_BRANCH)] | Annotated[Sequence[Text], Field(min_length=1), Frozen, Tag(LIST_BRANCH)],
    Discriminator(_text_or_list),
]
ColumnOrObjects = Annotated[
    Annotated[Text, Tag(TEXT_BRANCH)] | Annotated[Sequence[Mapping[str, Any]], Frozen, Tag(LIST_BRANCH)],
    Discriminator(lambda value: TEXT_BRANCH if isinstance(value, str) else LIST_BRANCH),
]
ColumnOrVariables = Annotated[
    Annotated[Text, Tag(TEXT_BRANCH)]
    | Annotated[Mapping[str, Any], AfterValidator(_check_variables), Tag(MAPPING_BRANCH)],
    Discriminator(lambda value: TEXT_BRANCH if isinstance(value, str) else MAPPING_BRANCH),
]
Texts = Annotated[Sequence[Text], BeforeValidator(_as_list, json_schema_input_type=Text | list[Text] | None), Frozen]
Bias = Annotated[Number, Field(ge=-100, le=100)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
NumTop = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Device = Annotated[
    str, AfterValidator(_check_device), WithJsonSchema({"type": "string", "pattern": f"^({DEVICE_PATTERN})$"})
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSpec(_Section):
    """The model, and how it may be loaded."""

    path: Text = Field(description="hub id, local folder, or a .gguf file")
    revision: Text | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: the checkpoint's own (.gguf: bfloat16 if the device supports it, else float32)"
    )
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")
    allow_untested: bool = Field(False, description="run a model family that has no parity test")


class InputSpec(_Section):
    """The input rows, and the columns that make their prompts."""

    path: TextOrList = Field(
        description="file, folder, glob, URL, or a list of them; Parquet, or JSON lines, also as .gz or .zst"
    )
    format: Literal["auto", "parquet", "jsonl"] = Field("auto", description="auto: by file name, without .gz or .zst")
    id: Text | None = Field(None, description="column with the row's id; draws depend on it instead of the position")
    system: Text | None = Field(None, description="column with the system message, which may be null or absent")
    prompt: Text | None = Field(None, description="column with the user turn")
    messages: Text | None = Field(
        None, description="column with a list of {role, content}, or {from, value} as in ShareGPT"
    )
    text: Text | None = Field(None, description="column with raw text, no chat template")
    token_ids: Text | None = Field(None, description="column with a list of token ids, used unchanged")
    template: Text | None = Field(None, description="sandboxed Jinja over the row's columns; renders the user turn")
    system_template: Text | None = Field(
        None, description="the same for the system message; text without a column is the system message of every row"
    )
    chat_template: Text | None = Field(
        None, description="file with a chat template, the template itself, or the name of one of the model's templates"
    )
    chat_template_kwargs: ColumnOrVariables | None = Field(
        None, description="variables for the chat template, such as enable_thinking: false, or a column with them"
    )
    tools: ColumnOrObjects | None = Field(
        None, description="tools for the chat template: a list, or a column with a list in each row"
    )
    documents: ColumnOrObjects | None = Field(
        None, description="documents for the chat template: a list, or a column with a list in each row"
    )
    continue_final_message: bool = Field(
        False, description="end prompts inside the last message, the assistant's, which the model continues"
    )
    sampling: Text | None = Field(
        None, description="column with a row's own values for keys of `sampling`: a struct, or an object as JSON text"
    )
    limit: Annotated[int, Field(ge=0)] | None = Field(None, description="read only the first rows")

    @model_validator(mode="after")
    def _check_prompt_source(self) -> InputSpec:
        sources = ("prompt", "messages", "text", "token_ids", "template")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ValueError(f"expected exactly one of {', '.join(sources)}; got {found}")
        self._check_companions(given[0])
        return self

    def _check_companions(self, source: str) -> None:
        """Raise ValueError for a key that does not go with the key of the prompt, and for two system messages."""
        for key, sources in _KEY_TO_PROMPT_SOURCES.items():
            if getattr(self, key) not in (None, False) and source not in sources:
                raise ValueError(f"{key} can be used with {' or '.join(sources)}, not with {source}")
        if self.system is not None and self.system_template is not None:
            raise ValueError("expected at most one of system and system_template; got both")


class StructuredSpec(_Section):
    """The format that completions must have: exactly one of these keys."""

    json_schema: (
        Annotated[
            str,
            BeforeValidator(_as_json, json_schema_input_type=Mapping[str, Any] | str),
            AfterValidator(_check_json_object),
        ]
        | None
    ) = Field(None, description="JSON valid under this schema (YAML or JSON text), without free whitespace")
    regex: Text | None = Field(None, description="text that this regular expression matches from start to end")
    choice: Annotated[Sequence[Text], Field(min_length=1), Frozen] | None = Field(
        None, description="one of these texts"
    )
    grammar: Text | None = Field(None, description="text of this grammar, in llguidance's dialect of Lark or in GBNF")

    @model_validator(mode="after")
    def _check_one_given(self) -> StructuredSpec:
        if len(self.given) != 1:
            found = " and ".join(self.given) if self.given else "none"
            raise ValueError(f"expected exactly one of {', '.join(StructuredSpec.model_fields)}; got {found}")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The keys that are given, with their values."""
        return self.model_dump(exclude_none=True)


class SamplingSpec(_Section):
    """How tokens are sampled. None: the value comes from the model's generation_config, or is the built-in one."""

    temperature: Annotated[Number, Field(ge=0, le=1000)] | None = Field(None, description="0: greedy (built-in)")
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = Field(None, description="1.0: off (built-in)")
    top_k: Count | None = Field(None, description="0: off (built-in)")
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = Field(None, description="0.0: off (built-in)")
    repetition_penalty: Annotated[Number, Field(gt=0, le=1000)] | None = Field(
        None, description="above 1: tokens of prompt and completion become less likely; 1.0: off (built-in)"
    )
    presence_penalty: Penalty = Field(0.0, description="subtracted from the logit of every token of the completion")
    frequency_penalty: Penalty = Field(
        0.0, description="the same, once for each time that the completion has the token"
    )
    logit_bias: Annotated[Mapping[str, Bias], BeforeValidator(_as_mapping)] = Field(
        {}, description="token id, or text that is one token -> value added to its logit; -100 forbids it"
    )
    bad_words: Texts = Field((), description="texts that a completion never contains")
    structured: StructuredSpec | None = Field(None, description="the format that a completion must have")
    n: PositiveCount = Field(1, description="samples per row; they share its prompt")
    max_tokens: PositiveCount | None = Field(None, description="null: up to the context limit")
    max_reasoning_tokens: Count | None = Field(
        None, description="most tokens of thinking, whose end is then forced; null: up to the context limit"
    )
    min_tokens: Count = Field(0, description="a completion does not end before this many tokens")
    stop: Texts = Field((), description="text, or a list of texts, that ends a completion")
    stop_token_ids: Annotated[Sequence[Count], Frozen] = Field((), description="token ids that end a completion")
    ignore_eos: bool = Field(False, description="continue after the model's end tokens")
    skip_special_tokens: bool = Field(True, description="leave special tokens out of completions")
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(None, description="null: drawn at random and recorded")
    logprobs: NumTop | None = Field(
        None, description="log-probabilities of each token and of this many most likely ones"
    )
    prompt_logprobs: NumTop | None = Field(None, description="the same for the prompt's tokens")


class OutputSpec(_Section):
    """Where and how completions are written."""

    path: Text = Field(description="a folder, or a URL of one such as s3://bucket/folder")
    format: Literal["parquet", "jsonl"] = Field("parquet", description="of the part files in completions/")
    overwrite: bool = Field(False, description="replace an earlier run in that folder")
    lock: Literal["auto", "file", "off"] = Field(
        "auto", description="auto: the kernel's file lock, else a lock file | file: a lock file | off"
    )
    prefix: str = Field("", description="put before the name of every added column, for example gen_")
    token_ids: bool = Field(False, description="add a column with the token ids of each completion")
    reasoning: Literal["keep", "split", "drop"] = Field(
        "keep", description="thinking before the answer: part of the completion | a column of its own | left out"
    )
    reasoning_tags: Annotated[Sequence[Text], Field(min_length=2, max_length=2), Frozen] | None = Field(
        None, description="the texts that begin and end it; null: known ones of the model"
    )

    @model_validator(mode="after")
    def _check_tags(self) -> OutputSpec:
        if self.reasoning_tags is not None and self.reasoning == "keep":
            raise ValueError("reasoning_tags can be used with reasoning: split or drop, not with keep")
        if self.reasoning_tags is not None and self.reasoning_tags[0] == self.reasoning_tags[1]:
            raise ValueError("reasoning_tags must be two different texts")
        return self


class EngineSpec(_Section):
    """How the job is run. These keys change time and memory; only max_model_len can change completions."""

    device: Device = Field("auto", description="auto | cpu | cuda | cuda:1")
    block_size: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="token slots in a KV block")
    num_blocks: PositiveCount | None = Field(None, description="null: as many as fit into memory")
    memory_fraction: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.9, description="what the KV pool may take of the memory that weights and activations leave"
    )
    expected_tokens: PositiveCount | None = Field(
        None, description="output length that admission reserves; null: estimated from finished rows"
    )
    max_num_seqs: PositiveCount | None = Field(None, description="maximum rows that run at once")
    max_batched_tokens: PositiveCount | None = Field(None, description="maximum tokens in one step")
    max_model_len: PositiveCount | None = Field(None, description="null: the model's own")
    prefix_cache: bool = Field(True, description="share the blocks of common prefixes")
    order: Literal["prefix", "input"] = Field("prefix", description="prefix: whole-job depth-first order")
    attention: Literal["auto", "torch", "cpu", "triton"] = Field(
        "auto", description="auto | torch (reference) | cpu | triton (GPU)"
    )


class JobSpec(_Section):
    """A job file."""

    model: ModelSpec
    input: InputSpec
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    output: OutputSpec
    engine: EngineSpec = Field(default_factory=EngineSpec)
    on_error: Literal["continue", "stop"] = Field("continue", description="what to do at a bad row")
    max_errors: Annotated[int, Field(ge=0)] | None = Field(None, description="stop after more bad rows than this")
