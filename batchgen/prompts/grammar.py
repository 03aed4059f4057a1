"""Grammars: which tokens may come next in a completion of a given form. Knows llguidance, as `grammar_tokens.py` does.

A grammar is compiled once for all rows that share it and copied for every request. The library follows the text;
this module decides about special tokens, about the tokens that end a completion, and about the first token where the
tokenizer decodes the beginning of a text differently.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from batchgen.errors import RowError
from batchgen.prompts.control_tokens import special_tokens
from batchgen.prompts.detokenize import BEGINNING, Preceding
from batchgen.prompts.grammar_tokens import BeginningTokens, GrammarTokens, grammar_tokens
from batchgen.sampling_params import Structured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llguidance import GrammarFormat, LLMatcher
    from transformers import PreTrainedTokenizerFast

TokenBitmask = npt.NDArray[np.uint8]  # token t is bit t % 8 of byte t // 8

_MAX_COMPILED = 256  # grammars in the cache; one that was evicted is compiled again
# No form refers to this grammar. It lets the model choose the tokens of a text that the form prescribes, where the
# library would prescribe those of its own encoding.
_UNFORCED = {"name": "unforced", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "a"'}


class GrammarCompiler:
    """Compiles the grammars of one job, for a model with `vocab_size` token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)
        self._first_allowed = lru_cache(_MAX_COMPILED)(self._compute_first_allowed)

    def check(self, structured: Structured) -> None:
        """Raise RowError for a bad grammar or one that no token can begin, ModelError if none can be compiled."""
        self._compiled(structured)

    def constraint(
        self, structured: Structured, end_token_ids: Iterable[int], after: Preceding = BEGINNING
    ) -> GrammarConstraint:
        """Return the constraint of a new request whose text follows `after`; any of `end_token_ids` ends it."""
        matcher = self._compiled(structured).deep_copy()
        ends = self._bitmask(token_id for token_id in end_token_ids if token_id < self._vocab_size)
        tokens, first = self._tokens, None
        if tokens.beginning is not None and not after.token_ids:
            # A token without text, such as a space that is dropped, is as good a beginning as any.
            allowed = self._first_allowed(structured) | self._empty_bitmask(tokens.beginning)
            first = FirstToken(allowed, tokens.beginning.token_bytes, tokens.byte_ids)
        constraint = GrammarConstraint(matcher, self._text_bitmask, ends, first)
        constraint.feed_prompt([tokens.byte_ids[byte] for byte in after.incomplete])
        return constraint

    def _compile(self, structured: Structured) -> LLMatcher:
        tokens = self._tokens  # raises ModelError if the package is not installed
        from llguidance import LLMatcher

        grammar = _grammar(structured)
        matcher = LLMatcher(tokens.inside, grammar if tokens.is_canonical else _unforced(grammar), log_level=0)
        if matcher.is_error():
            raise RowError(f"structured.{structured.kind}: {_one_line(matcher.get_error())}")
        can_begin = GrammarConstraint(matcher, self._text_bitmask, self._bitmask(())).allowed().any()
        if not can_begin and (tokens.beginning is None or not self._first_allowed(structured).any()):
            raise RowError(f"structured.{structured.kind}: no token of this model can begin it")
        return matcher

    def _compute_first_allowed(self, structured: Structured) -> TokenBitmask:
        """Return the tokens that can come first at the beginning of a text, without those that have no text there."""
        from llguidance import LLMatcher

        beginning = self._tokens.beginning
        assert beginning is not None
        matcher = LLMatcher(beginning.tokenizer, _unforced(_grammar(structured)), log_level=0)
        return GrammarConstraint(matcher, self._text_bitmask, self._bitmask(())).allowed()

    @cached_property
    def _tokens(self) -> GrammarTokens:
        return grammar_tokens(self._tokenizer, self._num_ids)

    @cached_property
    def _text_bitmask(self) -> TokenBitmask:
        """The tokens that are text."""
        text = set(self._tokenizer.get_vocab().values()) - special_tokens(self._tokenizer).keys()
        return self._bitmask(token_id for token_id in text if token_id < self._vocab_size)

    @cached_property
    def _num_ids(self) -> int:
        """The number of token ids for the library: those of the model and the tokenizer, and one for every byte."""
        return max(self._vocab_size, 1 + max(self._tokenizer.get_vocab().values())) + 256

    def _empty_bitmask(self, beginning: BeginningTokens) -> TokenBitmask:
        token_bytes = beginning.token_bytes[: self._vocab_size]
        return self._text_bitmask & self._bitmask(n for n, data in enumerate(token_bytes) if not data)

    def _bitmask(self, token_ids: Iterable[int]) -> TokenBitmask:
        is_in = np.zeros(-(-self._num_ids // 32) * 32, np.bool_)  # the library writes words of 32 bits
        is_in[list(token_ids)] = True
        return np.packbits(is_in, bitorder="little")


class FirstToken(NamedTuple):
    """What the first token of a text may be, where it has other bytes than inside a text."""

    allowed: TokenBitmask
    token_bytes: Sequence[bytes]  # of every token at the beginning
    byte_ids: Mapping[int, int]  # the token of each byte


class GrammarConstraint:
    """Follows the grammar of one completion. Implements the engine's `TokenConstraint`."""

    def __init__(
        self, matcher: LLMatcher, text: TokenBitmask, ends: TokenBitmask, first: FirstToken | None = None
    ) -> None:
        self._matcher = matcher
        self._text = text
        self._ends = ends
        self._first = first
        self._misfit: str | None = None

    @property
    def error(self) -> str | None:
        """Why no token is allowed any more, as when a grammar exceeds the library's limits; None: no error."""
        if self._misfit is not None:
            return self._misfit
        return f"structured: {_one_line(self._matcher.get_error())}" if self._matcher.is_error() else None

    def allowed(self) -> TokenBitmask:
        """Return the text tokens that continue the grammar and, where it may end, the end tokens."""
        if self._first is not None:
            bitmask = self._first.allowed & ~self._ends
        else:
            bitmask = np.zeros_like(self._text)
            self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
            bitmask &= self._text & ~self._ends
        if self._matcher.is_error():
            return np.zeros_like(bitmask)
        return bitmask | self._ends if self._matcher.is_accepting() else bitmask

    def feed(self, token_id: int) -> bool:
        """Take the next token, an allowed one that is no end token. Returns True if no token can follow it."""
        token_ids = [token_id]
        if self._first is not None:
            token_ids = [self._first.byte_ids[byte] for byte in self._first.token_bytes[token_id]]
            self._first = None
        is_consumed = self._matcher.consume_tokens(token_ids)
        assert is_consumed or self.error is not None
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def feed_prompt(self, byte_ids: Sequence[int]) -> None:
        """Take the bytes of an incomplete character at the end of the prompt, with which the text begins."""
        if not self._matcher.consume_tokens(list(byte_ids)):
            self._misfit = "structured: the prompt ends inside a character with which no text of this form begins"


def _grammar(structured: Structured) -> str:
    """Return the grammar in the library's own format. JSON has no free whitespace unless its schema asks for it."""
    from llguidance import LLMatcher, grammar_from

    try:
        if structured.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(structured.text, defaults={"whitespace_flexible": False})
        return grammar_from(cast("GrammarFormat", structured.kind), structured.text)
    except ValueError as error:
        raise RowError(f"structured.{structured.kind}: {_one_line(str(error))}") from None


def _unforced(grammar: str) -> str:
    """Return the same grammar without prescribed tokens."""
    top: dict[str, Any] = json.loads(grammar) if grammar.startswith("{") else {"grammars": [{"lark_grammar": grammar}]}
    return json.dumps({**top, "grammars": [*top["grammars"], _UNFORCED]})


def _one_line(error: str) -> str:
    return " ".join(error.split())
