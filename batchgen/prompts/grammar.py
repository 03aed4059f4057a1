"""Grammars: which tokens may come next in a completion of a given form. The only module that knows llguidance.

A grammar is compiled once for all rows that share it and copied for every request. The library follows the text;
this module decides about special tokens and about the tokens that end a completion.
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

TokenBitmask = npt.NDArray[np.uint8]  # token t is bit t % 8 of byte t // 8

_MAX_COMPILED = 256  # grammars in the cache; one that was evicted is compiled again


class GrammarCompiler:
    """Compiles the grammars of one job, for a model with `vocab_size` token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)

    def check(self, structured: Structured) -> None:
        """Raise RowError for a bad grammar or one that no token can begin, ModelError if none can be compiled."""
        self._compiled(structured)

    def constraint(self, structured: Structured, end_token_ids: Iterable[int]) -> GrammarConstraint:
        """Return the constraint of a new request, which any of `end_token_ids` ends."""
        ends = self._bitmask(token_id for token_id in end_token_ids if token_id < self._vocab_size)
        return GrammarConstraint(self._compiled(structured).deep_copy(), self._text_bitmask, ends)

    def _compile(self, structured: Structured) -> LLMatcher:
        tokenizer = self._llguidance_tokenizer  # raises ModelError if the package is not installed
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, _grammar(structured), log_level=0)
        if matcher.is_error():
            raise RowError(f"structured.{structured.kind}: {_one_line(matcher.get_error())}")
        if not GrammarConstraint(matcher, self._text_bitmask, self._bitmask(())).allowed().any():
            raise RowError(f"structured.{structured.kind}: no token of this model can begin it")
        return matcher

    @cached_property
    def _llguidance_tokenizer(self) -> LLTokenizer:
        """The library's tokenizer. Building it takes about 0.2 s for 50,000 tokens."""
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise ModelError(
                "sampling.structured needs the package llguidance, which is not installed: "
                "pip install 'batchgen[structured]'"
            ) from None
        special = special_tokens(self._tokenizer)
        if not special:
            raise ModelError("sampling.structured needs a tokenizer with a special token; this model's has none")
        backend = copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        try:
            # It requires an end token. Any special token will do, since `allowed` removes them all from its masks.
            return LLTokenizer(backend.to_str(), n_vocab=self._vocab_size, eos_token=min(special))
        except ValueError as error:
            raise ModelError(f"sampling.structured does not work with this model's tokenizer: {error}") from error

    @cached_property
    def _text_bitmask(self) -> TokenBitmask:
        """The tokens that are text."""
        text = set(self._tokenizer.get_vocab().values()) - special_tokens(self._tokenizer).keys()
        return self._bitmask(token_id for token_id in text if token_id < self._vocab_size)

    def _bitmask(self, token_ids: Iterable[int]) -> TokenBitmask:
        is_in = np.zeros(-(-self._vocab_size // 32) * 32, np.bool_)  # the library writes words of 32 bits
        is_in[list(token_ids)] = True
        return np.packbits(is_in, bitorder="little")


class GrammarConstraint:
    """Follows the grammar of one completion. Implements the engine's `TokenConstraint`."""

    def __init__(self, matcher: LLMatcher, text: TokenBitmask, ends: TokenBitmask) -> None:
        self._matcher = matcher
        self._text = text
        self._ends = ends

    @property
    def error(self) -> str | None:
        """Why no token is allowed any more, as when a grammar exceeds the library's limits; None: no error."""
        return f"structured: {_one_line(self._matcher.get_error())}" if self._matcher.is_error() else None

    def allowed(self) -> TokenBitmask:
        """Return the text tokens that continue the grammar and, where it may end, the end tokens."""
        bitmask = np.zeros_like(self._text)
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        if self._matcher.is_error():
            return np.zeros_like(bitmask)
        bitmask &= self._text & ~self._ends
        return bitmask | self._ends if self._matcher.is_accepting() else bitmask

    def feed(self, token_id: int) -> bool:
        """Take the next token, an allowed one that is no end token. Returns True if no token can follow it."""
        is_consumed = self._matcher.consume_token(token_id)
        assert is_consumed or self.error is not None
        return self._matcher.is_stopped() and not self._matcher.is_error()


def _grammar(structured: Structured) -> str:
    """Return the grammar in the library's own format. JSON has no free whitespace unless its schema asks for it."""
    from llguidance import LLMatcher, grammar_from

    try:
        if structured.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(structured.text, defaults={"whitespace_flexible": False})
        return grammar_from(cast("GrammarFormat", structured.kind), structured.text)
    except ValueError as error:
        raise RowError(f"structured.{structured.kind}: {_one_line(str(error))}") from None


def _one_line(error: str) -> str:
    return " ".join(error.split())
