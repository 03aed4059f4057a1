"""Grammars over the byte tokenizer: a token is a byte, so that every mask is readable."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from batchgen.errors import ModelError, RowError
from batchgen.prompts.grammar import GrammarCompiler, GrammarConstraint, _grammar
from batchgen.sampling_params import Structured
from tests.tiny_models import EOS, IM_END, VOCAB_SIZE, byte_tokenizer, merging_tokenizer, metaspace_tokenizer

GRAMMARS = GrammarCompiler(byte_tokenizer(), VOCAB_SIZE)


def constraint(kind: str, text: str, after: str = "", ends: Sequence[int] = (EOS,)) -> GrammarConstraint:
    """Return a constraint that was fed the bytes of `after`, none of which completes the grammar."""
    made = GRAMMARS.constraint(Structured(kind, text), ends)
    assert not any(made.feed(byte) for byte in after.encode())
    return made


def allowed(made: GrammarConstraint) -> list[int]:
    ids: list[int] = np.flatnonzero(np.unpackbits(made.allowed(), bitorder="little")).tolist()
    return ids


@pytest.mark.parametrize(
    ("kind", "text", "after", "expected"),
    [
        ("choice", '["yes", "no"]', "", [*b"ny"]),
        ("choice", '["yes", "no"]', "y", [*b"e"]),
        ("choice", '["ab", "abc"]', "ab", [*b"c", EOS]),  # may end here, or go on
        ("choice", '["\\u00e9\\n"]', "\u00e9", [*b"\n"]),
        ("regex", "a[bc]+", "a", [*b"bc"]),
        ("regex", "a[bc]+", "ab", [*b"bc", EOS]),
        ("regex", "a*", "", [*b"a", EOS]),
        ("grammar", 'start: "a" B\nB: /x+/', "ax", [*b"x", EOS]),  # Lark
        ("grammar", 'root ::= "a" [0-2]', "a", [*b"012"]),  # GBNF
        ("json_schema", '{"enum": [1, 12]}', "1", [*b"2", EOS]),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}', "{", [*b'"']),
        ("json_schema", '{"type": "array", "items": {"enum": [1]}, "minItems": 2}', "[1", [*b","]),
        ("json_schema", '{"type": "string", "maxLength": 1}', '"x', [*b'"']),
    ],
)
def test_what_may_come_next(kind: str, text: str, after: str, expected: list[int]) -> None:
    assert allowed(constraint(kind, text, after)) == sorted(expected)


def test_json_has_whitespace_only_where_the_schema_asks_for_it() -> None:
    schema: dict[str, Any] = {"type": "array", "items": {"type": "boolean"}}
    assert ord(" ") not in allowed(constraint("json_schema", json.dumps(schema), "["))
    schema["x-guidance"] = {"whitespace_flexible": True}
    assert ord(" ") in allowed(constraint("json_schema", json.dumps(schema), "["))


def test_nothing_follows_a_complete_text() -> None:
    assert constraint("choice", '["ab", "ac"]', "a").feed(ord("b"))
    assert not constraint("choice", '["ab", "abc"]', "a").feed(ord("b"))


def test_special_tokens_are_allowed_only_to_end() -> None:
    anything = r"(?s:.*)"
    assert [token for token in allowed(constraint("regex", anything)) if token > 255] == [EOS]
    assert [token for token in allowed(constraint("regex", anything, ends=[IM_END])) if token > 255] == [IM_END]
    assert [token for token in allowed(constraint("regex", anything, ends=())) if token > 255] == []
    assert allowed(constraint("grammar", 'start: "a" (<|im_start|> | "b")', "a")) == [*b"b"]


def test_an_end_token_is_allowed_only_where_the_grammar_may_end() -> None:
    assert allowed(constraint("regex", "[ab]{2,}", ends=[ord("b"), 9999])) == [*b"a"]
    assert allowed(constraint("regex", "[ab]{2,}", "aa", ends=[ord("b")])) == [*b"ab"]


def test_requests_with_one_grammar_are_independent() -> None:
    first, second = (constraint("choice", '["ab", "cd"]') for _ in range(2))
    first.feed(ord("a"))
    assert (allowed(first), allowed(second)) == ([*b"b"], [*b"ac"])


@pytest.mark.parametrize("tokenizer", [merging_tokenizer, metaspace_tokenizer])
def test_a_grammar_accepts_its_text_in_any_tokens(tokenizer: Any) -> None:
    made = tokenizer()
    text = '{"answer":"Hello the answer is \u00e9"}'
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}
    follows = GrammarCompiler(made, len(made)).constraint(Structured("json_schema", json.dumps(schema)), ())
    ids = made.encode(text, add_special_tokens=False)
    ids = ids[1:] if tokenizer is metaspace_tokenizer else ids  # it begins every text with a space, which is no text
    for token_id in ids[:-1]:
        assert token_id in allowed(follows)
        assert not follows.feed(token_id)
    assert follows.feed(ids[-1])


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("json_schema", '{"type": "objekt"}', "structured.json_schema: Invalid type: objekt"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
        ("regex", "(a", "structured.regex: at 1(8): invalid regex"),
        ("grammar", 'start: "a" b', 'structured.grammar: at 1(8): unknown name: "b"'),
        ("grammar", "root ::= (", "structured.grammar: Failed to convert the grammar from GBNF"),
        ("grammar", "start: <|im_end|>", "structured.grammar: no token of this model can begin it"),
        ("regex", "()", "structured.regex: no token of this model can begin it"),
    ],
)
def test_a_bad_grammar_is_refused_in_one_line(kind: str, text: str, problem: str) -> None:
    with pytest.raises(RowError) as caught:
        GRAMMARS.check(Structured(kind, text))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(structured: Structured) -> str:
        compiled.append(structured.text)
        return _grammar(structured)

    monkeypatch.setattr("batchgen.prompts.grammar._grammar", counted)
    grammars = GrammarCompiler(byte_tokenizer(), VOCAB_SIZE)
    for text in ("a", "b", "a"):
        grammars.check(Structured("regex", text))
        grammars.constraint(Structured("regex", text), ())
    assert compiled == ["a", "b"]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModelError, match=r"pip install 'batchgen\[structured\]'"):
        GrammarCompiler(byte_tokenizer(), VOCAB_SIZE).check(Structured("regex", "a"))


def test_after_an_error_of_the_library_no_token_is_allowed_and_the_error_is_kept() -> None:
    follows = constraint("regex", "ab")
    assert not follows.feed(ord("z"))
    assert allowed(follows) == []
    assert follows.error is not None
    assert follows.error.startswith("structured: ")
