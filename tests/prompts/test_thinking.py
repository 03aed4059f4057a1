"""One completion from its thinking to its answer, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchgen.prompts.detokenize import Detokenizer, StopStringMatcher
from batchgen.prompts.grammar import GrammarCompiler
from batchgen.prompts.reasoning import MAX_WHITESPACE, Reasoning, ReasoningTags
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.sampling_encoder import SamplingEncoder
from batchgen.prompts.thinking import AnswerConditions, Texts, Thinking
from batchgen.sampling_params import SamplingParams, Structured
from tests.prompts.test_reasoning import harmony, harmony_tokenizer
from tests.prompts.tokenizer_kinds import KINDS
from tests.tiny_models import (
    END_THINK,
    EOS,
    SPECIALS,
    THINK,
    byte_tokenizer,
    byte_vocab,
    thinking_tokenizer,
    wrap_tokenizer,
)

TAGS = ReasoningTags("<think>", "</think>")
TOKENIZER = thinking_tokenizer()
EXACT = Reasoning(TOKENIZER, TAGS, len(TOKENIZER))
SPELLED = Reasoning(byte_tokenizer(), TAGS, len(byte_tokenizer()))


def start(
    reasoning: Reasoning = EXACT,
    tokenizer: PreTrainedTokenizerFast = TOKENIZER,
    *,
    is_open: bool = False,
    stop_token_ids: Sequence[int] = (),
    **params: Any,
) -> Thinking:
    given, detokenizer = SamplingParams(**params), Detokenizer(tokenizer)
    grammars = GrammarCompiler(tokenizer, len(tokenizer))
    answer = AnswerConditions(
        frozenset([EOS]),
        frozenset(stop_token_ids),
        lambda before: StopStringMatcher(detokenizer, given.stop, given.min_tokens) if given.stop else None,
        lambda before: grammars.constraint(given.structured, [EOS]) if given.structured else None,
        (),
    )
    return Thinking(reasoning, given, answer, is_open=is_open)


def feed(thinking: Thinking, token_ids: Sequence[int]) -> int | None:
    """How many tokens the completion has when it ends; None if it goes on."""
    return next((n for n, token_id in enumerate(token_ids, start=1) if thinking.feed(token_id)), None)


def allowed(thinking: Thinking) -> set[int] | None:
    """The tokens that may come next; None if all may."""
    if thinking.constraint is None:
        return None
    return set(np.flatnonzero(np.unpackbits(thinking.constraint.allowed(), bitorder="little")).tolist())


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tokenizer_can_think(kind: str, is_token: bool) -> None:
    tokenizer = KINDS[kind]()
    if is_token:
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("aaa", "bbb")])
    if not is_token and (kind.startswith("WordPiece") or kind == "words"):
        with pytest.raises(ValueError, match="no tokens for"):
            Reasoning(tokenizer, ReasoningTags("aaa", "bbb"), len(tokenizer))
        return
    reasoning, detokenizer = Reasoning(tokenizer, ReasoningTags("aaa", "bbb"), len(tokenizer)), Detokenizer(tokenizer)
    assert reasoning.end.is_exact == is_token
    token_ids = tokenizer.encode(" aaa yes no bbb a.", add_special_tokens=False)
    for budget in (None, 99):
        thinking = start(reasoning, tokenizer, max_reasoning_tokens=budget)
        assert feed(thinking, token_ids) is None
        texts = thinking.texts(token_ids, detokenizer)
        assert Texts((texts.completion or "").replace(" .", "."), texts.reasoning) == Texts("a.", "yes no")
    thinking = start(reasoning, tokenizer, max_reasoning_tokens=0)
    assert feed(thinking, reasoning.begin.token_ids) is None
    forced: list[int] = []
    while (tokens := allowed(thinking)) is not None:
        forced += tokens
        assert thinking.feed(forced[-1]) is False
    assert tuple(forced) == reasoning.end.token_ids


def test_where_a_completion_thinks() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    for head, tail, expected in (
        ([THINK, *b" so \n"], [*b"\n ok "], Texts("ok ", "so")),
        ([*b" \n", THINK], [*b"ok"], Texts("ok", "")),
        ([THINK, *b"a<think>b</thin"], [*b"</think>"], Texts("</think>", "a<think>b</thin")),
    ):
        thinking, token_ids = start(), [*head, END_THINK, *tail]
        assert feed(thinking, token_ids) is None
        assert (thinking.has_thought, thinking.is_over) == (True, True)
        assert thinking.texts(token_ids, detokenizer) == expected
        assert thinking.texts(head, detokenizer).completion is None
    for token_ids in ([*b"x", THINK, *b"y", END_THINK], [*(b" " * MAX_WHITESPACE), *b" ", THINK], [END_THINK]):
        thinking = start()
        assert feed(thinking, token_ids) is None
        assert (thinking.has_thought, thinking.is_over, thinking.num_tokens) == (False, True, 0)
        assert thinking.texts(token_ids, detokenizer) == Texts(detokenizer.decode(token_ids))


def test_a_completion_that_ends_where_it_may_still_begin_to_think() -> None:
    detokenizer = Detokenizer(byte_tokenizer())
    for text, stop, expected in (("<thi", (), "<thi"), ("<thi", ("th",), "<"), (" ", (), " ")):
        thinking = start(SPELLED, byte_tokenizer(), stop=stop)
        assert feed(thinking, [*text.encode()]) is None
        assert not thinking.is_over
        thinking.close(EOS)
        completion = thinking.texts([*text.encode()], detokenizer).completion
        if thinking.stop_condition is not None:
            completion = thinking.answer_text(thinking.stop_condition.text)
        assert completion == expected


def test_tokens_that_turn_out_to_be_no_tag_are_the_answer() -> None:
    thinking = start(SPELLED, byte_tokenizer(), stop=("x",))
    assert feed(thinking, [*b"<thix"]) == 5
    assert thinking.num_tokens == 0
    thinking = start(SPELLED, byte_tokenizer(), structured=Structured("regex", "<th[a-h]"))
    assert allowed(thinking) == {ord("<")}
    assert feed(thinking, [*b"<th"]) is None
    assert allowed(thinking) == {*b"abcdefgh", ord("i")}
    assert feed(thinking, [*b"a"]) == 1


def test_whitespace_alone_reaches_max_tokens() -> None:
    thinking = start(max_tokens=2)
    assert (feed(thinking, [*b"\n\n"]), thinking.is_over, thinking.num_tokens) == (None, True, 0)
    assert feed(start(max_tokens=1, stop=("\n",)), [*b"\n"]) == 1


def merged_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and tokens that go beyond the end of a tag: `>{` and `></`."""
    vocab = byte_vocab() | {text: 256 + n for n, text in enumerate([*SPECIALS, ">{", "</", "></"])}
    merges = [(">", "{"), ("<", "/"), (">", "</")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return wrap_tokenizer(backend, None)


def test_a_token_may_hold_the_end_of_a_tag_and_what_comes_next() -> None:
    tokenizer = merged_tokenizer()
    reasoning, detokenizer = Reasoning(tokenizer, TAGS, len(tokenizer)), Detokenizer(tokenizer)
    for text, expected in (
        ("<think>{so</think>{ok", Texts("{ok", "{so")),
        ("<think></think>{ok", Texts("{ok", "")),
        ("<think></think> ok", Texts("ok", "")),
    ):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(token_ids) < len(text) - 1
        thinking = start(reasoning, tokenizer)
        assert feed(thinking, token_ids) is None
        assert thinking.texts(token_ids, detokenizer) == expected
    token_ids = tokenizer.encode("<think>a</think>{", add_special_tokens=False)
    thinking = start(reasoning, tokenizer, structured=Structured("regex", "[{](a|b)"))
    assert feed(thinking, token_ids) is None
    assert allowed(thinking) == {ord("a"), ord("b")}
    assert feed(start(reasoning, tokenizer, structured=Structured("regex", "[{]")), token_ids) == len(token_ids)
    thinking = start(reasoning, tokenizer, structured=Structured("regex", "a"))
    assert feed(thinking, token_ids) is None
    assert allowed(thinking) == set()
    assert thinking.constraint is not None
    assert (thinking.constraint.error or "").startswith("structured: ")


def test_a_form_begins_behind_the_thinking() -> None:
    thinking = start(structured=Structured("regex", "ab"))
    assert allowed(thinking) == {ord("a"), THINK}
    assert feed(thinking, [THINK]) is None
    assert allowed(thinking) is None
    assert feed(thinking, [*b"xyz", END_THINK]) is None
    for _ in range(MAX_WHITESPACE):
        assert allowed(thinking) == {ord("a"), ord("\n"), ord(" ")}
        thinking.feed(ord("\n"))
    assert allowed(thinking) == {ord("a")}
    assert feed(thinking, [*b"ab"]) == 2


def test_an_answer_in_the_final_channel_without_analysis() -> None:
    tokenizer = harmony_tokenizer()
    for text, expected in (
        ("<|channel|>final<|message|>ok", Texts("ok")),
        ("<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>ok", Texts("ok", "so")),
        ("<|channel|>commentary<|message|>ok", Texts("commentaryok")),
    ):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        thinking = start(harmony(), tokenizer, stop=("o",) if "so" in text else ())
        assert feed(thinking, token_ids[:-2]) is None
        assert thinking.texts(token_ids, Detokenizer(tokenizer)) == expected


def test_only_what_an_end_tag_lacks_is_forced() -> None:
    reasoning, begun = harmony(), harmony_tokenizer().encode("<|end|><|start|>ass", add_special_tokens=False)
    thinking = start(reasoning, harmony_tokenizer(), is_open=True, max_reasoning_tokens=8)
    assert feed(thinking, [*b"why", *begun]) is None
    assert thinking.needs_results
    for token_id in reasoning.end.token_ids[5:]:
        assert allowed(thinking) == {token_id}
        thinking.feed(token_id)
    assert allowed(thinking) is None
    assert thinking.texts([*b"why", *begun], Detokenizer(harmony_tokenizer())).reasoning == "why"


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({}, []),
        ({"stop": ("x",), "logprobs": 2, "max_tokens": 1}, []),
        ({"max_reasoning_tokens": 9}, []),
        ({"max_reasoning_tokens": 3}, ["so", "so!"]),  # the last two tokens before the end tag can come
        ({"max_reasoning_tokens": 0}, ["", "<"]),
        ({"min_tokens": 2}, ["", "<", "s", "so", "so!", ">"]),
        ({"structured": Structured("regex", "[a-z]+")}, ["", "<", "s", "so", "so!", ">", "o", "ok"]),
    ],
)
def test_results_are_needed_where_they_decide_what_may_come_next(params: dict[str, Any], needed: list[str]) -> None:
    thinking = start(**params)
    found = [""] if thinking.needs_results else []
    names = ["<", "s", "so", "so!", ">", "o", "ok"]
    token_ids = [THINK, *b"so!", END_THINK, *b"ok"]
    if params.get("max_reasoning_tokens") == 0:
        names, token_ids = ["<", ">", "o", "ok"], [THINK, END_THINK, *b"ok"]
    for name, token_id in zip(names, token_ids, strict=True):
        thinking.feed(token_id)
        found += [name] if thinking.needs_results else []
    assert found == needed


def test_end_tokens_of_every_part() -> None:
    thinking = start(stop_token_ids=[ord("\n"), ord("x")])
    ends = []
    for token_id in (THINK, ord("a"), END_THINK, ord("\n"), ord("b")):
        ends.append(thinking.end_token_ids - {EOS})
        thinking.feed(token_id)
    everything = {ord("\n"), ord("x")}
    assert [*ends, thinking.end_token_ids - {EOS}] == [everything, set(), set(), {ord("x")}, {ord("x")}, everything]


def test_a_budget_needs_memory_for_adjusted_logits() -> None:
    sampling_encoder = SamplingEncoder(TOKENIZER, len(TOKENIZER), splits_reasoning=True)
    for params in (SamplingParams(), SamplingParams(max_reasoning_tokens=0)):
        worst = RowSampling(params, 0, sampling_encoder, reasoning=EXACT).worst_case
        assert worst.penalises == (params.max_reasoning_tokens is not None)
