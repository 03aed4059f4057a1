"""Tokenizers for llguidance: the bytes of every token inside a text and at its beginning. Knows no grammar."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from batchgen.errors import ModelError
from batchgen.prompts.control_tokens import special_tokens
from batchgen.prompts.detokenize import Detokenizer
from batchgen.prompts.token_bytes import TokenBytes, decoder_types

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from transformers import PreTrainedTokenizerFast

_NOT_BY_TOKEN = {"BPEDecoder", "CTC"}  # decoders with which the text of a token depends on the one after it


class BeginningTokens(NamedTuple):
    """The tokens of a tokenizer that decodes the beginning of a text differently: it drops a space, for example."""

    tokenizer: LLTokenizer
    token_bytes: Sequence[bytes]  # by token id


class GrammarTokens(NamedTuple):
    """The tokens of one tokenizer for the library."""

    inside: LLTokenizer
    is_canonical: bool  # whether the library can encode text with it
    byte_ids: Mapping[int, int]  # a token for every byte
    beginning: BeginningTokens | None  # None: tokens have the same bytes at the beginning of a text


def grammar_tokens(tokenizer: PreTrainedTokenizerFast, num_ids: int) -> GrammarTokens:
    """Return the tokens with `num_ids` ids, of which the tokenizer has none of the last 256.

    Raises ModelError if the library is not installed, or if it cannot work with the tokenizer.
    """
    token_bytes = TokenBytes(tokenizer)
    has_all_bytes = len(token_bytes.byte_to_id) == 256
    own = _own_tokenizer(tokenizer, num_ids) if has_all_bytes else None
    if own is not None and token_bytes.is_byte_level:
        return GrammarTokens(own, True, token_bytes.byte_to_id, None)
    inside = token_bytes.table(Detokenizer(tokenizer, skip_special_tokens=False).inside.token_ids)
    first = token_bytes.table(())
    beginning = None if first == inside else BeginningTokens(_table_tokenizer(tokenizer, first, num_ids), first)
    if own is not None and _is_same_text(own, inside, special_tokens(tokenizer)):
        return GrammarTokens(own, True, token_bytes.byte_to_id, beginning)
    byte_ids = {byte: num_ids - 256 + byte for byte in range(256)}
    return GrammarTokens(_table_tokenizer(tokenizer, inside, num_ids), False, byte_ids, beginning)


def _is_same_text(own: LLTokenizer, table: Sequence[bytes], special: Container[int]) -> bool:
    """Return whether the library reads every token of text as it is decoded. The byte FF, in no text, is its own."""
    ordinary = ((n, data) for n, data in enumerate(table) if n not in special and data != b"\xff")
    return all(own.decode_bytes([n]) == data for n, data in ordinary)


def _own_tokenizer(tokenizer: PreTrainedTokenizerFast, num_ids: int) -> LLTokenizer:
    """Return the library's own reading of a tokenizer. It takes about 0.2 s for 50,000 tokens."""
    end = _end_token_id(tokenizer)
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise _not_installed() from None
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    try:
        return LLTokenizer(backend.to_str(), n_vocab=num_ids, eos_token=end)
    except ValueError as error:
        raise ModelError(f"sampling.structured does not work with this model's tokenizer: {error}") from error


def _table_tokenizer(tokenizer: PreTrainedTokenizerFast, table: Sequence[bytes], num_ids: int) -> LLTokenizer:
    """Return a tokenizer that cannot encode: the bytes of every token, and one more token for every byte."""
    end = _end_token_id(tokenizer)
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError:
        raise _not_installed() from None
    if found := decoder_types(tokenizer.backend_tokenizer) & _NOT_BY_TOKEN:
        raise ModelError(f"sampling.structured does not work with this model's tokenizer: its decoder is {min(found)}")
    padding = [b""] * (num_ids - 256 - len(table))
    tokens = [*table, *padding, *(bytes([byte]) for byte in range(256))]
    return LLTokenizer(TokenizerWrapper(_Table(tokens, sorted(special_tokens(tokenizer)), end)))


class _Table:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_token_ids: Sequence[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, data: Iterable[int]) -> list[int]:
        """Encode some bytes with the tokens of single bytes."""
        return [len(self.tokens) - 256 + byte for byte in data]


def _end_token_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return an end token for the library, which requires one. Any special token will do: none is in our masks."""
    special = special_tokens(tokenizer)
    if not special:
        raise ModelError("sampling.structured needs a tokenizer with a special token; this model's has none")
    return min(special)


def _not_installed() -> ModelError:
    return ModelError(
        "sampling.structured needs the package llguidance, which is not installed: pip install 'batchgen[structured]'"
    )
