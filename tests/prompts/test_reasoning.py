"""The tags of a model's thinking: found, encoded, and looked for at the end of a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from batchgen.prompts.reasoning import Reasoning, ReasoningTags, find_tags, given_tags
from tests.prompts.test_shapes import CHATML_TOKENS, DEEPSEEK_TOKENS, GPT_OSS_TOKENS, read
from tests.tiny_models import CHATML, END_THINK, THINK, byte_tokenizer, thinking_tokenizer

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")
HARMONY_TEMPLATE = (
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
)


def harmony_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(HARMONY_TEMPLATE)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in HARMONY])
    return tokenizer


def harmony() -> Reasoning:
    tokenizer = harmony_tokenizer()
    tags = find_tags(tokenizer, [HARMONY_TEMPLATE])
    assert tags is not None
    return Reasoning(tokenizer, tags, len(tokenizer))


@pytest.mark.parametrize(
    ("added", "template", "tags"),
    [
        ((), CHATML, None),
        ((), CHATML + "{{ content.split('</think>')[-1] }}", None),
        ((), CHATML + "{% if x %}<think>\\n\\n</think>{% endif %}", ("<think>", "</think>")),
        (("<think>", "</think>"), CHATML, ("<think>", "</think>")),
        (("<think>",), CHATML, None),
        (("[THINK]", "[/THINK]"), CHATML, ("[THINK]", "[/THINK]")),
        (("<seed:think>", "</seed:think>"), CHATML, ("<seed:think>", "</seed:think>")),
        (("<|START_THINKING|>", "<|END_THINKING|>"), CHATML, ("<|START_THINKING|>", "<|END_THINKING|>")),
        (("<think>", "</think>"), "[THINK]{{ thinking }}[/THINK]", ("[THINK]", "[/THINK]")),  # the template counts
    ],
)
def test_tags_are_found_in_the_template_or_the_vocabulary(
    added: tuple[str, ...], template: str, tags: tuple[str, str] | None
) -> None:
    tokenizer = byte_tokenizer(template)
    tokenizer.add_tokens(list(added))
    found = find_tags(tokenizer, [template])
    assert (None if found is None else found[:2]) == tags


def test_channels_are_tags_of_several_tokens() -> None:
    reasoning = harmony()
    assert reasoning.tags.direct == "<|channel|>final<|message|>"
    assert (reasoning.begin.is_exact, reasoning.end.is_exact) == (True, True)
    assert len(reasoning.end.token_ids) == len("assistant") + len("final") + 4
    assert given_tags(*reasoning.tags[:2]) == reasoning.tags
    assert given_tags("<a>", "</a>") == ReasoningTags("<a>", "</a>")


def test_a_tag_that_the_model_cannot_generate_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens for '</think>'"):
        Reasoning(thinking_tokenizer(), ReasoningTags("<think>", "</think>"), END_THINK)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("", None),
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n</think>", False),
        ("<|im_start|>assistant\n<think>\nSo it is", True),  # a thinking that the completion continues
        ("<|im_start|>assistant\n<think>\na</think>It", False),
        ("<|im_start|>user\n<think>x<|im_end|>\n<|im_start|>assistant\n", None),  # in another turn
        ("<think>a</think><think>", True),
        ("no turns <think> here", True),
    ],
)
def test_whether_a_prompt_leaves_the_thinking_open(prompt: str, is_open: bool | None) -> None:
    exact = thinking_tokenizer()
    spelled = byte_tokenizer()
    for tokenizer in (exact, spelled):
        reasoning = Reasoning(tokenizer, ReasoningTags("<think>", "</think>"), len(tokenizer))
        assert reasoning.begin.is_exact == (tokenizer is exact)
        prompt_ids = np.array(tokenizer.encode(prompt, add_special_tokens=False), np.int32)
        assert reasoning.is_open_after(prompt_ids) is is_open


def test_characters_of_a_tag_that_is_a_token_are_text() -> None:
    tokenizer = thinking_tokenizer()
    reasoning = Reasoning(tokenizer, ReasoningTags("<think>", "</think>"), len(tokenizer))
    assert reasoning.is_open_after(np.array([*b"what is <think> for"], np.int32)) is None
    assert reasoning.is_open_after(np.array([THINK, *b"</think>"], np.int32)) is True


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|start|>user<|message|>hi<|end|><|start|>assistant", None),
        ("<|start|>assistant<|channel|>analysis<|message|>so", True),
        ("<|start|>assistant<|channel|>final<|message|>It", False),
        ("<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>", False),
        ("<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary<|message|>{}<|call|><|start|>f"
         "<|channel|>commentary<|message|>1<|end|><|start|>assistant", None),
    ],
)  # fmt: skip
def test_channels_in_a_prompt(prompt: str, is_open: bool | None) -> None:
    prompt_ids = np.array(harmony_tokenizer().encode(prompt, add_special_tokens=False), np.int32)
    assert harmony().is_open_after(prompt_ids) is is_open


@pytest.mark.parametrize(
    ("shape", "tokens", "kwargs", "is_open"),
    [
        ("qwen3", CHATML_TOKENS, {}, None),
        ("qwen3", CHATML_TOKENS, {"enable_thinking": False}, False),
        ("deepseek", DEEPSEEK_TOKENS, {"thinking": True}, True),
        ("deepseek", DEEPSEEK_TOKENS, {"thinking": False}, False),
        ("smollm3", ("<think>", "</think>"), {}, None),
        ("smollm3", ("<think>", "</think>"), {"enable_thinking": False}, False),
        ("gpt-oss", GPT_OSS_TOKENS, {}, None),
    ],
)
def test_templates_of_models_that_think(
    shape: str, tokens: tuple[str, ...], kwargs: dict[str, Any], is_open: bool | None
) -> None:
    template = read(shape)
    tokenizer = byte_tokenizer(template)
    tokenizer.add_tokens([AddedToken(text, special=shape == "gpt-oss", normalized=False) for text in tokens])
    tags = find_tags(tokenizer, [template])
    assert tags is not None
    reasoning = Reasoning(tokenizer, tags, len(tokenizer))
    assert (reasoning.begin.is_exact, reasoning.end.is_exact) == (True, True)
    messages = [{"role": "user", "content": "What is <thinking>?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **kwargs)
    assert isinstance(prompt, str)
    prompt_ids = np.array(tokenizer.encode(prompt, add_special_tokens=False), np.int32)
    assert reasoning.is_open_after(prompt_ids) is is_open
