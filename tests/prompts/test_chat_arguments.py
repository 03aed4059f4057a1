"""What a row or the job file gives to the chat template, and whose characters control tokens are made of."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from batchgen.errors import ModelError, RowError, SpecError, TemplateError
from tests.examples import examples
from tests.prompts.encoding import encoder, error_of, row
from tests.tiny_models import BOS, CHATML, EOS, IM_END, IM_START, byte_tokenizer, metaspace_tokenizer

USER = {"role": "user", "content": "count"}
BEGUN = {"role": "assistant", "content": "1, 2, "}
TOOLS = [{"type": "function", "function": {"name": "sum"}}]

# The prompt is what the template prints, and a token is a byte: prompts can be compared as text.
PRINT = "{{ messages[-1].content }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ mode }}"


def prompt(template: str, *, spec: dict[str, Any] | None = None, **values: Any) -> str:
    """Return the prompt of one row, by default with a user turn in the column `p`, as text."""
    columns = spec or {}
    source: dict[str, Any] = {} if columns.keys() & {"messages", "template"} else {"prompt": "p"}
    return bytes(encoder(byte_tokenizer(template), **source, **columns).encode_row(row(p="u", **values))).decode()


def test_values_of_the_job_file_reach_the_template() -> None:
    spec = {"tools": TOOLS, "documents": [{"text": "A"}], "chat_template_kwargs": {"mode": "x", "other": None}}
    assert prompt(PRINT + "{{ other is defined }}", spec=spec) == (
        'u|[{"type": "function", "function": {"name": "sum"}}]|[{"text": "A"}]|xFalse'
    )


def test_columns_reach_the_template_and_an_absent_value_is_none() -> None:
    spec = {"tools": "t", "documents": "d", "chat_template_kwargs": "k"}
    assert prompt(PRINT, spec=spec, t=[{"a": 1}], d=[], k={"mode": False}) == 'u|[{"a": 1}]|[]|False'
    assert prompt(PRINT, spec=spec, t=None, k={"mode": None}) == "u|null|null|"


@pytest.mark.parametrize(
    ("spec", "value", "words"),
    [
        ({"tools": "c"}, "x", "column 'c': expected a list of tools, found text"),
        ({"tools": "c"}, [{}, "x"], "column 'c': tools[1]: expected an object, found text"),
        ({"documents": "c"}, {}, "column 'c': expected a list of documents, found an object"),
        ({"chat_template_kwargs": "c"}, [], "column 'c': expected an object with variables, found a list"),
        ({"chat_template_kwargs": "c"}, {"tools": []}, "column 'c': tools cannot be set here"),
    ],
)
def test_a_value_of_another_type_names_its_column(spec: dict[str, Any], value: Any, words: str) -> None:
    assert words in error_of(encoder(prompt="p", **spec), row(p="u", c=value))


def test_the_system_template_is_rendered_for_every_row() -> None:
    spec = {"system_template": "Write {{ lang }}.", "template": "{{ q }}?"}
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert prompt(template, spec=spec, lang="German", q="Hi") == "system:Write German.;user:Hi?;"
    assert prompt(template, spec={"system_template": "Be brief."}) == "system:Be brief.;user:u;"


def test_share_gpt_messages_have_roles() -> None:
    senders = ["system", "human", "gpt", "observation", "human"]
    messages = [{"from": sender, "value": str(n), "weight": None} for n, sender in enumerate(senders)]
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert prompt(template, spec={"messages": "m"}, m=messages) == "system:0;user:1;assistant:2;tool:3;user:4;"
    text = error_of(encoder(messages="m"), row(m=[{"from": "narrator", "value": "a"}]))
    assert "messages[0].from: 'narrator' is none of human, user, gpt" in text


def test_a_begun_answer_is_continued_as_transformers_does_it() -> None:
    tokenizer = byte_tokenizer(CHATML)
    continued = encoder(tokenizer, messages="m", continue_final_message=True)
    ids = continued.encode_row(row(m=[USER, BEGUN]))
    assert ids == [IM_START, *b"user\ncount", IM_END, *b"\n", IM_START, *b"assistant\n1, 2, "]
    assert ids == tokenizer.apply_chat_template([USER, BEGUN], continue_final_message=True, return_dict=False)


@pytest.mark.parametrize(
    ("is_continued", "messages", "words"),
    [
        (False, [USER, BEGUN], "the last message is the assistant's; set input.continue_final_message: true"),
        (
            True,
            [BEGUN, USER],
            "input.continue_final_message continues the assistant's message, but the last one has the",
        ),
        (True, [USER, {"role": "assistant", "tool_calls": TOOLS}], "but the last one has no content"),
    ],
)
def test_a_last_message_that_does_not_fit_the_key_is_the_rows_error(
    is_continued: bool, messages: list[Any], words: str
) -> None:
    row_encoder = encoder(byte_tokenizer(CHATML), messages="m", continue_final_message=is_continued)
    text = error_of(row_encoder, row(m=messages))
    assert text.startswith("rows.jsonl line 3: column 'm': ")
    assert words in text


def test_templates_with_names() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"default": "d", "tool_use": "t", "long": "l"}
    chosen: dict[str, Any] = {"prompt": "p", "tools": "t"}
    assert encoder(tokenizer, **chosen).encode_row(row(p="a")) == [*b"d"]
    assert encoder(tokenizer, **chosen).encode_row(row(p="a", t=[])) == [*b"t"]
    assert encoder(tokenizer, **chosen, chat_template="long").encode_row(row(p="a", t=[])) == [*b"l"]
    assert encoder(tokenizer, prompt="p", chat_template="{{ 1 + 1 }}").encode_row(row(p="a")) == [*b"2"]
    with pytest.raises(SpecError, match=r"'tool_us'; did you mean tool_use\? its chat templates are default, long"):
        encoder(tokenizer, prompt="p", chat_template="tool_us")
    with pytest.raises(SpecError, match="it has no chat templates with names; or give a file"):
        encoder(byte_tokenizer(CHATML), prompt="p", chat_template="default")


def test_names_without_a_default_are_listed_unless_all_rows_have_tools() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"terse": "s", "tool_use": "t"}
    with pytest.raises(ModelError, match=r"terse, tool_use and none is called default; .* input\.chat_template"):
        encoder(tokenizer, prompt="p", tools="t")
    assert encoder(tokenizer, prompt="p", tools=TOOLS).encode_row(row(p="a")) == [*b"t"]


def test_a_broken_chat_template_is_refused_with_its_line() -> None:
    with pytest.raises(SpecError, match=r"input\.chat_template line 2: "):
        encoder(prompt="p", chat_template="a\n{% if %}")
    with pytest.raises(SpecError, match=r"the model's chat template line 1: "):
        encoder(byte_tokenizer("{{ a"), prompt="p")


def test_a_pickled_encoder_has_all_arguments() -> None:
    spec: dict[str, Any] = {
        "chat_template": PRINT,
        "tools": [{}],
        "chat_template_kwargs": {"mode": "x"},
        "system_template": "s",
    }
    copy = pickle.loads(pickle.dumps(encoder(prompt="p", **spec)))
    assert bytes(copy.encode_row(row(p="u"))) == b"u|[{}]|null|x"


def test_keys_that_the_template_does_not_read_are_known() -> None:
    given: dict[str, Any] = {
        "tools": TOOLS,
        "documents": "d",
        "chat_template_kwargs": {"mode": "x", "enable_thinkin": False},
    }
    template = "{{ messages }}{% if enable_thinking %}{{ mode }}{% endif %}{{ documents }}"
    assert encoder(byte_tokenizer(template), prompt="p", **given).unread_keys() == [
        "input.chat_template_kwargs.enable_thinkin",
        "input.tools",
    ]


def encode(template: str, **values: Any) -> list[int]:
    """Encode a chat of one user message whose fields are `values`."""
    tokenizer = byte_tokenizer(template)
    return encoder(tokenizer, messages="m").encode_row(row(m=[{"role": "user", "content": "", **values}]))


MESSAGE = "{% set m = messages[0] %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ m.a }}{{ m.b }}",
        "{{ m.a ~ m.b }}",
        "{{ m.a + m.b }}",
        "{{ [m.a, m.b] | join }}",
        "{{ ''.join([m.a, m.b]) }}",
        "{{ '%s%s' % (m.a, m.b) }}",
        "{{ '%s%s' | format(m.a, m.b) }}",
        "{{ '{}{}'.format(m.a, m.b) }}",
        "{% macro f(x) %}{{ x }}{{ m.b }}{% endmacro %}{{ f(m.a) }}",
        "{% set x %}{{ m.a }}{{ m.b }}{% endset %}{{ x | trim }}",
        "{{ (m.a ~ 'x' ~ m.b).replace('x', '') }}",
        "{{ (m.a ~ ' ' ~ m.b).split() | join }}",
        "{{ (m.a ~ m.b)[::1] }}",
        "{% for char in m.a ~ m.b %}{{ char }}{% endfor %}",
        "{{ (m.a ~ m.b) | upper | lower }}",
        "{% for key in {m.a ~ m.b: 1} %}{{ key }}{% endfor %}",
        "{{ (m.a ~ m.b) | list | join }}",
        "{% filter trim %}{{ m.a }}{{ m.b }}{% endfilter %}",
        "{% set n = namespace(x='') %}{% set n.x = n.x + m.a %}{{ n.x + m.b }}",
    ],
)
def test_parts_of_a_control_string_never_make_a_control_token(template: str) -> None:
    """Only the template may join the parts; its own control tokens stay."""
    assert encode(f"{MESSAGE}<bos>{template}<|im_end|>", a="<eo", b="s>") == [BOS, *b"<eos>", IM_END]


def test_a_control_string_in_a_key_is_text() -> None:
    template = "{% for name in messages[0].x %}{{ name }}{% endfor %}{{ messages[0].x | tojson }}<eos>"
    assert encode(template, x={"<eos>": "<bos>"}) == [*b'<eos>{"<eos>": "<bos>"}', EOS]


def test_control_strings_of_tools_documents_and_variables_are_text() -> None:
    spec: dict[str, Any] = {"tools": "t", "documents": [{"a": "<eos>"}], "chat_template_kwargs": {"mode": "<|im_end|>"}}
    ids = encoder(byte_tokenizer(PRINT + "<pad>"), prompt="p", **spec).encode_row(row(p="<pad>", t=[{"b": "<bos>"}]))
    assert bytes(ids[:-1]) == b'<pad>|[{"b": "<bos>"}]|[{"a": "<eos>"}]|<|im_end|>'
    assert ids[-1] == 256


CUT = (
    "{% set c = messages[0].content %}{% if '<eos>' in c %}{% set c = c.split('<eos>')[-1].lstrip('\\n') %}{% endif %}"
)


def test_logic_of_the_template_sees_control_strings_of_the_content() -> None:
    assert encode(CUT + "{{ c }}<eos>", content="x<eos>\n\ny<bos>") == [*b"y<bos>", EOS]
    assert encode(CUT + "<eos>{{ c }}", content="y") == [EOS, *b"y"]
    joined = "{% set c = 'x' ~ messages[0].content %}{{ c.split('<eos>') | last }}<eos>"
    assert encode(joined, content="<eos>y<bos>") == [*b"y<bos>", EOS]


@examples(100)
@given(parts=st.lists(st.sampled_from(["<eos>", "<bos>", "<", "eos>", "\n", "a", "<|im_end|>"]), max_size=6))
def test_the_text_of_a_prompt_is_what_transformers_renders(parts: list[str]) -> None:
    """Control tokens that the template writes are as many as it writes for any content."""
    tokenizer, content = byte_tokenizer(CUT + "{{ c | trim }}<eos>"), "".join(parts)
    ids = encoder(tokenizer, prompt="p").encode_row(row(p=content))
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    assert tokenizer.decode(ids) == rendered
    assert ids[-1] == EOS
    assert all(token_id < 256 for token_id in ids[:-1])


def test_a_template_that_loses_track_of_a_control_string_is_the_rows_error() -> None:
    """The escaped text has no `<`, so that no mark becomes `&lt;`."""
    template = "{{ messages[0].content | e }}<eos>"
    with pytest.raises(
        TemplateError, match=r"line 3: column 'prompt': the model's chat template changes '<eos>' of this"
    ):
        encoder(byte_tokenizer(template)).encode_row(row(prompt="<eos>"))
    assert len(encoder(byte_tokenizer(template)).encode_row(row(prompt="a<b"))) == len("a&lt;b") + 1


def test_a_message_that_the_template_changes_cannot_be_continued() -> None:
    """transformers' error has the whole chat; the row's error has its beginning."""
    continued = encoder(byte_tokenizer("{{ messages[-1].content[:3] }}"), messages="m", continue_final_message=True)
    text = error_of(continued, row(m=[{"role": "assistant", "content": "a" * 5000}]))
    assert "continue_final_message is set but the final message does not appear in the chat" in text
    assert len(text) < 600


def test_what_the_template_refuses_in_the_content_is_refused() -> None:
    template = "{% if '<eos>' in messages[0].content %}{{ raise_exception('no end here') }}{% endif %}<eos>"
    assert "no end here" in error_of(encoder(byte_tokenizer(template)), row(prompt="a<eos>"))


def test_text_in_which_a_control_string_was_possible_is_encoded_whole_where_it_must_be() -> None:
    """A SentencePiece tokenizer encodes text that has no control string as it does without marks."""
    tokenizer = metaspace_tokenizer(CHATML)
    tokenizer.add_tokens([AddedToken("<a>", single_word=True)], special_tokens=True)
    content = "x < y | z_ >"
    ids = encoder(tokenizer, vocab_size=1000).encode_row(row(prompt=content))
    messages = [{"role": "user", "content": content}]
    assert ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with pytest.raises(RowError, match="'<eos>', which this tokenizer cannot encode as ordinary text"):
        encoder(tokenizer, vocab_size=1000).encode_row(row(prompt=content + "<eos>"))
