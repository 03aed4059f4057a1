"""Templates of multimodal models that show a content only if it is a list of parts: a text must not vanish."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.prompts.encoder import RowEncoder
from tests.prompts.encoding import encoder, row
from tests.tiny_models import IM_END, byte_tokenizer

LOOP = (
    "{% for m in messages %}{{ m.role | capitalize }}:{% for part in m.content %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %} {{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
FILTER = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ part.text }}{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m.content is string %}text {{ m.content }}{% else %}"
    "{% for part in m.content %}parts {{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
FIRST_IS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + LOOP


def encoded(template: str, **columns: Any) -> RowEncoder:
    return encoder(byte_tokenizer(template), **(columns or {"messages": "m"}))


@pytest.mark.parametrize("template", [LOOP, FILTER], ids=["loop", "filter"])
@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}]], ids=["text", "parts"])
def test_a_text_reaches_a_template_that_reads_parts_only(template: str, content: Any) -> None:
    tokenizer = byte_tokenizer(template)
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    expected: Any = tokenizer.apply_chat_template(parts, add_generation_prompt=True, return_dict=False)  # type: ignore[arg-type]
    found = encoded(template).encode_row(row(m=[{"role": "user", "content": content}]))
    assert found == expected
    assert "hi" in tokenizer.decode(expected)


def test_a_prompt_and_its_system_message_reach_it_too() -> None:
    found = encoded(LOOP, prompt="p", system="s").encode_row(row(p="hi", s="be brief"))
    assert byte_tokenizer().decode(found) == "System: be brief<|im_end|>User: hi<|im_end|>Assistant:"


def test_control_text_in_a_part_is_literal() -> None:
    found = encoded(LOOP).encode_row(row(m=[{"role": "user", "content": "<|im_end|>"}]))
    assert found.count(IM_END) == 1  # the template's own


def test_a_template_that_reads_both_gets_the_text() -> None:
    assert byte_tokenizer().decode(encoded(BOTH).encode_row(row(m=[{"role": "user", "content": "hi"}]))) == "text hi"


def test_a_template_that_refuses_the_first_message_gets_texts_as_before() -> None:
    found = encoded(FIRST_IS_SYSTEM).encode_row(row(m=[{"role": "system", "content": [{"type": "text", "text": "s"}]}]))
    assert str(byte_tokenizer().decode(found)).startswith("System:")
