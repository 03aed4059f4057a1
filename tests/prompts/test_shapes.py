"""Chats in the shapes of well-known models: the ids of their prompts are those of transformers, same arguments given.

The templates are written for these tests after the documented formats of the models; each has what is particular to
its model: tools before the first turn or in the last user turn, a system message that moves into the user turn,
thinking that is cut out of earlier answers, documents, dates, channels.
"""

# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from batchgen.io.input.rows import Row
from batchgen.prompts.encoder import RowEncoder
from batchgen.spec.job_spec import InputSpec
from tests.tiny_models import byte_tokenizer

SHAPES_FOLDER = Path(__file__).parent / "shapes"
NOON = datetime(2025, 1, 2, 12)

CHATML_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MISTRAL_TOKENS = (
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
GEMMA_TOKENS = ("<start_of_turn>", "<end_of_turn>")
DEEPSEEK_TOKENS = (
    *("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
GPT_OSS_TOKENS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
GRANITE_TOKENS = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
GLM_TOKENS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>", "/nothink")


def read(name: str) -> str:
    return (SHAPES_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def turns(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """Return messages of user and assistant in turn."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    """Return an assistant's message that calls the tool `weather`."""
    function = {"name": "weather", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "call-0001", "type": "function", "function": function}],
        **fields,
    }


RESULT = {"role": "tool", "tool_call_id": "call-0001", "name": "weather", "content": '{"degrees": 21}'}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather at é", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"properties": {}}}},
]
DOCUMENTS = [{"doc_id": 1, "title": "A", "text": "Apples are red."}, {"doc_id": 2, "title": "B", "text": "Sky, blue."}]
THOUGHT = "<think>\nOne, two.\n</think>\n\nTwo."


@dataclass(frozen=True)
class Shape:
    """A chat and what is given beside it."""

    template: str | Mapping[str, str]  # file names of templates
    tokens: Sequence[str]
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_continued: bool = False
    special: bool = True  # whether the tokens are special, so that the same text in content is not a token

    def tokenizer(self) -> PreTrainedTokenizerFast:
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens(list(self.tokens), special_tokens=self.special)
        if isinstance(self.template, str):
            tokenizer.chat_template = read(self.template)
        else:
            tokenizer.chat_template = {name: read(file) for name, file in self.template.items()}
        return tokenizer


SHAPES = {
    "chatml": Shape("chatml", (), turns("Hi", "Hello.", "Bye", system="Be brief.")),
    "chatml prefill": Shape("chatml", (), turns("Count", "1, 2, "), is_continued=True),
    "qwen3": Shape("qwen3", CHATML_TOKENS, turns("Hi", system="Be brief.")),
    "qwen3 thinking off": Shape("qwen3", CHATML_TOKENS, turns("Hi"), kwargs={"enable_thinking": False}),
    "qwen3 tools": Shape(
        "qwen3", CHATML_TOKENS,
        [*turns("Oslo?", system="s"), call({"city": "é"}, content="Let me see."), RESULT, RESULT],
        tools=TOOLS,
    ),
    "qwen3 history": Shape("qwen3", CHATML_TOKENS, turns("1+1?", THOUGHT, "2+2?"), special=False),
    "qwen3 history, thinking is special": Shape("qwen3", CHATML_TOKENS, turns("1+1?", THOUGHT, "2+2?")),
    "qwen3 reasoning before a call": Shape(
        "qwen3", CHATML_TOKENS, [*turns("Oslo?"), call({"city": "Oslo"}, reasoning_content="Ask."), RESULT]
    ),
    "qwen3 prefill of an answer": Shape(
        "qwen3", CHATML_TOKENS, turns("1+1?", "<think>\nx\n</think>\n\nIt is "),
        is_continued=True, special=False,
    ),
    "llama": Shape("llama", LLAMA_TOKENS, turns(" Hi ", "Hello. ", "Bye", system="Be brief.\n")),
    "llama tools in the user turn": Shape(
        "llama", LLAMA_TOKENS, [*turns("Oslo?"), call({"city": "Oslo", "days": 2}), RESULT], tools=TOOLS,
        kwargs={"date_string": "26 Jul 2024"},
    ),
    "llama tools in the system turn": Shape(
        "llama", LLAMA_TOKENS, turns("Oslo?", system="s"), tools=TOOLS, kwargs={"tools_in_user_message": False}
    ),
    "llama prefill, trimmed": Shape("llama", LLAMA_TOKENS, turns("Count", "1, 2, "), is_continued=True),
    "mistral tools": Shape(
        "mistral", MISTRAL_TOKENS, [*turns("Oslo?"), call({"city": "Oslo"}), RESULT, *turns("Rome?")], tools=TOOLS
    ),
    "mistral system": Shape("mistral", MISTRAL_TOKENS, turns("Hi", "Hello.", "Bye", system="Be brief.")),
    "gemma2 without system": Shape("gemma2", GEMMA_TOKENS, turns(" Hi", "Hello.", "Bye\n")),
    "gemma3 system in the user turn": Shape("gemma3", GEMMA_TOKENS, turns("Hi", "Hello.", "Bye", system="Be brief")),
    "deepseek": Shape("deepseek", DEEPSEEK_TOKENS, turns("1+1?", "Hm.</think>Two.", "2+2?", system="Be brief.")),
    "deepseek thinking": Shape(
        "deepseek", DEEPSEEK_TOKENS, [*turns("Oslo?"), call({"city": "é"}), RESULT, *turns("Rome?")],
        kwargs={"thinking": True}, special=False,
    ),
    "gpt-oss tools": Shape(
        "gpt-oss", GPT_OSS_TOKENS, [*turns("Oslo?", system="s"), call({"city": "Oslo"}, thinking="Ask."), RESULT],
        tools=TOOLS, kwargs={"reasoning_effort": "high"},
    ),
    "granite documents": Shape(
        "granite", GRANITE_TOKENS, turns("Colour?"), documents=DOCUMENTS, kwargs={"controls": {"citations": True}}
    ),
    "granite tools": Shape("granite", GRANITE_TOKENS, turns("Oslo?", system="s"), tools=TOOLS),
    "smollm3": Shape(
        "smollm3", CHATML_TOKENS, turns("Hi", "\nHello.", "Bye", system="Be brief. /no_think"),
        kwargs={"xml_tools": TOOLS},
    ),
    "glm history": Shape("glm", GLM_TOKENS, turns("1+1?", THOUGHT, "2+2?"), kwargs={"enable_thinking": False}),
    "named": Shape({"default": "chatml", "tool_use": "qwen3"}, CHATML_TOKENS, turns("Hi"), tools=TOOLS),
    "named, without tools": Shape({"default": "chatml", "tool_use": "qwen3"}, CHATML_TOKENS, turns("Hi")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers print the encoder's time."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return NOON

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Noon)


def apply(shape: Shape, tokenizer: PreTrainedTokenizerFast, *, tokenize: bool = True) -> Any:
    """Return what transformers makes of a shape."""
    return tokenizer.apply_chat_template(
        shape.messages, tools=shape.tools, documents=shape.documents, add_generation_prompt=not shape.is_continued,
        continue_final_message=shape.is_continued, tokenize=tokenize, return_dict=False, **shape.kwargs,
    )  # fmt: skip


def encode(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Encode a shape whose chat is in the columns of a row."""
    columns = {"messages": "m", "tools": "t", "documents": "d", "chat_template_kwargs": "k"}
    spec = InputSpec.model_validate({"path": "a.jsonl", **columns, "continue_final_message": shape.is_continued})
    values = {"m": shape.messages, "t": shape.tools, "d": shape.documents, "k": dict(shape.kwargs)}
    encoder = RowEncoder(tokenizer, spec, vocab_size=1000, max_model_len=10_000, clock=NOON)
    return encoder.encode_row(Row(0, "a.jsonl line 1", values))


@pytest.mark.parametrize("name", SHAPES)
def test_ids_are_those_of_transformers(name: str) -> None:
    shape = SHAPES[name]
    tokenizer = shape.tokenizer()
    assert encode(shape, tokenizer) == apply(shape, tokenizer)


@pytest.mark.parametrize("name", SHAPES)
def test_control_text_in_the_messages_is_text(name: str) -> None:
    """The prompt is the text that transformers renders, with the control tokens that it has without that text."""
    clean = SHAPES[name]
    tokenizer = clean.tokenizer()
    text = f"a{''.join(clean.tokens)}<eos><|im_end|>b <"
    messages = [
        {**each, "content": text + each["content"]} if each["role"] == "user" else each for each in clean.messages
    ]
    tools = None
    if clean.tools is not None:
        tools = [{**tool, "function": {**tool["function"], "description": text}} for tool in clean.tools]
    shape = replace(clean, messages=messages, tools=tools)
    ids = encode(shape, tokenizer)
    assert tokenizer.decode(ids) == apply(shape, tokenizer, tokenize=False)
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert special.intersection(ids)
    assert [each for each in ids if each in special] == [each for each in encode(clean, tokenizer) if each in special]
