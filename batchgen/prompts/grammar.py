"""Grammars: which tokens may come next in a completion that must have a form. The only file that knows llguidance.

A grammar is compiled once for all rows that share it and copied for every request. The library follows the text;
special tokens, and what ends a completion, are decided here.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from batchgen.errors import ModelError, RowError
from batchgen.prompts.control_tokens import special_tokens
from batchgen.sampling_params import Structured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import GrammarFormat, LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerFast

TokenBits = npt.NDArray[np.uint8]  # token t is bit t % 8 of byte t // 8

_MAX_COMPILED = 256  # grammars that are kept; where a job has more, one that comes again is compiled again


class Grammars:
    """The grammars of one job, for a model with `vocab_size` ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)

    def check(self, structured: Structured) -> None:
        """RowError where it is no grammar, or none that a completion can begin to follow; ModelError where none is."""
        self._compiled(structured)

    def constraint(self, structured: Structured, end_token_ids: Iterable[int]) -> GrammarConstraint:
        """The constraint of a new request, which any of `end_token_ids` ends."""
        ends = self._bits(token_id for token_id in end_token_ids if token_id < self._vocab_size)
        return GrammarConstraint(self._compiled(structured).deep_copy(), self._text, ends)

    def _compile(self, structured: Structured) -> LLMatcher:
        tokenizer = self._llguidance_tokenizer  # from here on the package is known to be there
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, _grammar(structured), log_level=0)
        if matcher.is_error():
            raise RowError(f"structured.{structured.kind}: {_in_short(matcher.get_error())}")
        if not GrammarConstraint(matcher, self._text, self._bits(())).allowed().any():
            raise RowError(f"structured.{structured.kind}: no text of this model can begin it")
        return matcher

    @cached_property
    def _llguidance_tokenizer(self) -> LLTokenizer:
        """Takes about 0.2 s with 50,000 tokens."""
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise ModelError(
                "sampling.structured takes a package that is not installed (llguidance): "
                "pip install 'batchgen[structured]'"
            ) from None
        special = special_tokens(self._tokenizer)
        if not special:
            raise ModelError("sampling.structured needs a tokenizer with a special token; this model's has none")
        backend = copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        try:
            # It wants an end token; any special one will do, as none of them is taken from its masks.
            return LLTokenizer(backend.to_str(), n_vocab=self._vocab_size, eos_token=min(special))
        except ValueError as error:
            raise ModelError(f"sampling.structured cannot be had with this model's tokenizer: {error}") from error

    @cached_property
    def _text(self) -> TokenBits:
        """The tokens that are text."""
        text = set(self._tokenizer.get_vocab().values()) - special_tokens(self._tokenizer).keys()
        return self._bits(token_id for token_id in text if token_id < self._vocab_size)

    def _bits(self, token_ids: Iterable[int]) -> TokenBits:
        is_in = np.zeros(-(-self._vocab_size // 32) * 32, np.bool_)  # the library writes words of 32 bits
        is_in[list(token_ids)] = True
        return np.packbits(is_in, bitorder="little")


class GrammarConstraint:
    """Follows one completion: a `TokenConstraint` of the engine."""

    def __init__(self, matcher: LLMatcher, text: TokenBits, ends: TokenBits) -> None:
        self._matcher = matcher
        self._text = text
        self._ends = ends

    @property
    def error(self) -> str | None:
        """Why no token is allowed any more: the library has limits on how hard a grammar may be to follow."""
        return f"structured: {_in_short(self._matcher.get_error())}" if self._matcher.is_error() else None

    def allowed(self) -> TokenBits:
        """The tokens of text that go on with the grammar, and those that end it where it may end."""
        bits = np.zeros_like(self._text)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            return np.zeros_like(bits)
        bits &= self._text & ~self._ends
        return bits | self._ends if self._matcher.is_accepting() else bits

    def feed(self, token_id: int) -> bool:
        """Take the next token, an allowed one that ends nothing; True when nothing can follow it."""
        is_taken = self._matcher.consume_token(token_id)
        assert is_taken or self.error is not None
        return self._matcher.is_stopped() and not self._matcher.is_error()


def _grammar(structured: Structured) -> str:
    """In the library's own form. JSON has no whitespace between its parts, unless the schema itself asks for it."""
    from llguidance import LLMatcher, grammar_from

    try:
        if structured.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(structured.text, defaults={"whitespace_flexible": False})
        return grammar_from(cast("GrammarFormat", structured.kind), structured.text)
    except ValueError as error:
        raise RowError(f"structured.{structured.kind}: {_in_short(str(error))}") from None


def _in_short(error: str) -> str:
    """The library's words on one line."""
    return " ".join(error.split())
