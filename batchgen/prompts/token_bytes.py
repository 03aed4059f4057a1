"""Knows the bytes that single tokens stand for, of tokenizers whose tokens may be parts of characters. Knows no row."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


class Incomplete(NamedTuple):
    """The end of a sequence of tokens that is no whole character yet."""

    data: bytes
    num_replaced: int  # characters U+FFFD that stand for it in the decoded text


class TokenBytes:
    """The bytes of one tokenizer's tokens: of byte-level tokens, and of byte tokens such as `<0x0A>`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        types = decoder_types(self._backend)
        self._is_byte_level = types - {"Sequence"} == {"ByteLevel"}
        self._char_to_byte = _byte_level_alphabet() if "ByteLevel" in types else {}
        self._byte_tokens = _byte_tokens(self._backend) if "ByteFallback" in types else {}
        self._continuations = {token_id for token_id, byte in self._byte_tokens.items() if 0x80 <= byte < 0xC0}
        by_char = {byte: self._backend.token_to_id(char) for char, byte in self._char_to_byte.items()}
        by_name = {byte: token_id for token_id, byte in self._byte_tokens.items()}
        # The token of each byte that is a token by itself.
        self.byte_to_id = {byte: token_id for byte, token_id in (by_char or by_name).items() if token_id is not None}

    @property
    def is_byte_level(self) -> bool:
        """Whether every token is a sequence of bytes, the same wherever it stands."""
        return self._is_byte_level

    def is_byte_token(self, token_id: int) -> bool:
        """Return whether the token is one byte that is decoded together with the byte tokens next to it."""
        return token_id in self._byte_tokens

    def is_continuation(self, token_id: int) -> bool:
        """Return whether the token is a byte token that no character begins with."""
        return token_id in self._continuations

    def of(self, token_id: int) -> bytes | None:
        """Return the bytes of a byte-level token or a byte token; None for any other token."""
        if not self._char_to_byte:
            return bytes([self._byte_tokens[token_id]]) if token_id in self._byte_tokens else None
        token = self._backend.id_to_token(token_id) or ""
        data = [self._char_to_byte.get(char) for char in token]
        return token.encode() if None in data else bytes(byte for byte in data if byte is not None)

    def table(self, before: Sequence[int]) -> list[bytes]:
        """Return the bytes that every token adds to the text of the tokens `before`, by token id."""
        ids = sorted(set(self._backend.get_vocab().values()))
        texts = self._backend.decode_batch([[*before, token_id] for token_id in ids], skip_special_tokens=False)
        start = len(self._backend.decode(list(before), skip_special_tokens=False))
        table = [b""] * (ids[-1] + 1)
        for token_id, text in zip(ids, texts, strict=True):
            data = self.of(token_id)
            table[token_id] = text[start:].encode() if data is None or data.isascii() else data
        return table

    def incomplete_end(self, token_ids: Sequence[int]) -> Incomplete:
        """Return the incomplete character at the end of some tokens, empty if there is none.

        Byte tokens without another token in between are decoded as one: as text if they are UTF-8, else as one U+FFFD
        each. So all of them count if they only lack the end of their last character.
        """
        run = self._last_run(token_ids)
        head, tail = _split_incomplete(b"".join(run))
        if not tail:
            return Incomplete(b"", 0)
        if self._char_to_byte:
            return Incomplete(tail, 1)
        return Incomplete(head + tail, len(run)) if _is_utf8(head) else Incomplete(b"", 0)

    def is_valid_end(self, token_ids: Sequence[int]) -> bool:
        """Return whether the byte tokens at the end of some tokens, if any, are UTF-8."""
        return bool(self._char_to_byte) or _is_utf8(b"".join(self._last_run(token_ids)))

    def _last_run(self, token_ids: Sequence[int]) -> list[bytes]:
        run: list[bytes] = []
        for token_id in reversed(token_ids):
            data = self.of(token_id)
            if data is None:
                break
            run.append(data)
        return run[::-1]


def decoder_types(backend: Tokenizer) -> frozenset[str]:
    """Return the types of a tokenizer's decoders, as `tokenizer.json` names them."""
    decoder: Any = backend.decoder
    return frozenset() if decoder is None else frozenset(_types(json.loads(decoder.__getstate__())))


def _types(decoder: Mapping[str, Any]) -> Iterator[str]:
    yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _types(part)


def _byte_level_alphabet() -> dict[str, int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {char: byte for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


def _byte_tokens(backend: Tokenizer) -> dict[int, int]:
    ids = {byte: backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    return {token_id: byte for byte, token_id in ids.items() if token_id is not None}


def _split_incomplete(data: bytes) -> tuple[bytes, bytes]:
    """Split off the bytes of a character that the end of `data` cuts off."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    num_left = len(decoder.getstate()[0])
    return data[: len(data) - num_left], data[len(data) - num_left :]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
