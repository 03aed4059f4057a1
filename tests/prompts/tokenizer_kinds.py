"""Tiny tokenizers of every kind: how they mark spaces, what their decoder drops or adds, and how they write bytes.

All know the specials of `tiny_models`, which a row may hold as control tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import SPECIALS, byte_tokenizer, merging_tokenizer, metaspace_tokenizer

_CORPUS = ["a cat, a hat. don't ( be ) the answer: yes, no! yesterday é\n"] * 3
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORDS = {token: -float(len(token)) for token in (*"\u2581abcyesno.,", "\u2581yes")}


def metaspace(prepend_scheme: str) -> PreTrainedTokenizerFast:
    """A BPE whose decoder drops the space of the first token, unless it is never put there; no bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(_CORPUS, trainer)
    return _wrap(backend)


def byte_fallback(*, drops_space: bool) -> PreTrainedTokenizerFast:
    """A SentencePiece BPE without pre-tokenizer: as Llama's, which drops one space in front, or Gemma's."""
    vocab = {token: n for n, token in enumerate([*_BYTES, "<unk>", *_WORDS, "\u2581a", "\u2581y", "ye"])}
    merges = [("\u2581", "a"), ("\u2581", "y"), ("y", "e")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    prepend = [normalizers.Prepend("\u2581")] if drops_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if drops_space else []
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(parts)
    return _wrap(backend)


def unigram(*, with_bytes: bool) -> PreTrainedTokenizerFast:
    """A SentencePiece unigram model, as T5's or with bytes."""
    vocab = [("<unk>", 0.0), *[(byte, -99.0) for byte in _BYTES if with_bytes], *_WORDS.items()]
    backend = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=with_bytes))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    if with_bytes:
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return _wrap(backend)


def word_piece(*, cleans_up: bool) -> PreTrainedTokenizerFast:
    """BERT's: words without their spaces, which the decoder puts back, before punctuation only if it does not tidy."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=cleans_up)
    trainer = trainers.WordPieceTrainer(vocab_size=70, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(_CORPUS, trainer)
    return _wrap(backend, cleans_up=cleans_up)


def words_without_decoder() -> PreTrainedTokenizerFast:
    """Whole words, which are joined with spaces where there is no decoder."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=40, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(_CORPUS, trainer)
    return _wrap(backend)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": byte_tokenizer,
    "byte-level BPE": merging_tokenizer,
    "byte-level BPE that cleans up": lambda: _cleaning(merging_tokenizer()),
    "metaspace first, byte fallback": metaspace_tokenizer,
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace never": lambda: metaspace("never"),
    "byte fallback that drops a space": lambda: byte_fallback(drops_space=True),
    "byte fallback": lambda: byte_fallback(drops_space=False),
    "unigram": lambda: unigram(with_bytes=False),
    "unigram, byte fallback": lambda: unigram(with_bytes=True),
    "WordPiece": lambda: word_piece(cleans_up=False),
    "WordPiece that cleans up": lambda: word_piece(cleans_up=True),
    "words": words_without_decoder,
}


def _wrap(backend: Tokenizer, *, cleans_up: bool = False) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", *SPECIALS)])
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, **names)  # type: ignore[no-untyped-call]
    return _cleaning(made) if cleans_up else made


def _cleaning(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.clean_up_tokenization_spaces = True
    return tokenizer
