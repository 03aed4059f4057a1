"""Tiny offline models and tokenizers whose output is known or repeatable: float32, CPU, nothing downloaded.

The byte tokenizer has one token per UTF-8 byte (ids 0..255) and five specials (256..260); the models have 264 ids, so
261..263 exist in the logits but not in the tokenizer. A table model's next token depends on its last token only. The
random models have a large init: their greedy output changes when a far token of the prompt changes. Their output rows
for the specials are zero, so that a greedy end token is practically never chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIALS = ("<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
PAD, BOS, EOS, IM_START, IM_END = range(256, 261)
VOCAB_SIZE = 264
THINK, END_THINK = 261, 262  # of `thinking_tokenizer`

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Ends with the last character of the user's text, so that a table model can answer each row differently.
TAIL = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + CHATML
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}" + CHATML
WITH_BOS = "{{ bos_token }}" + CHATML
CLOCK = "{{ strftime_now('%H:%M:%S.%f') }}\n" + CHATML

ModelT = TypeVar("ModelT", bound=PreTrainedModel)

# token id -> the next one, or the next ones from best to worst
Table = Mapping[int, int | Sequence[int]]


def byte_vocab() -> dict[str, int]:
    """The 256 byte symbols of a byte-level BPE, each with the byte itself as its id."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def byte_tokenizer(chat_template: str | None = TAIL, add_bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte. `add_bos`: encoding with special tokens puts one `<bos>` in front."""
    backend = Tokenizer(models.BPE(vocab=byte_vocab() | {text: 256 + n for n, text in enumerate(SPECIALS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return wrap_tokenizer(backend, chat_template)


def thinking_tokenizer(chat_template: str | None = TAIL) -> PreTrainedTokenizerFast:
    """The byte tokenizer with two more tokens, `<think>` and `</think>`, which are not special, as in Qwen3."""
    tokenizer = byte_tokenizer(chat_template)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    return tokenizer


def merging_tokenizer(chat_template: str | None = CHATML, add_bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE with merges that cross words' spaces and newlines, as GPT-2's; `</think>` is an added token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([_CORPUS], trainer)
    return _finish_trained(backend, chat_template, add_bos)


def metaspace_tokenizer(chat_template: str | None = CHATML, add_bos: bool = False) -> PreTrainedTokenizerFast:
    """A BPE as SentencePiece makes them: a space before the text's first word only; bytes for unknown characters."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    learner.train_from_iterator([_CORPUS], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {token: 256 + token_id for token, token_id in learnt["vocab"].items()}
    merges = [(left, right) for left, right in learnt["merges"]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finish_trained(backend, chat_template, add_bos)


def wrap_tokenizer(backend: Tokenizer, chat_template: str | None) -> PreTrainedTokenizerFast:
    """A transformers tokenizer around `backend`, which must know the five specials."""
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = chat_template
    return tokenizer


def table_model(table: Table) -> LlamaForCausalLM:
    """A Llama whose next token depends on the last token only; a token the table lacks has all logits 0."""
    config = LlamaConfig(
        **_IDS,
        hidden_size=VOCAB_SIZE,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=66,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = _float32(LlamaForCausalLM(config))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB_SIZE))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for last, best in table.items():
            for rank, token_id in enumerate([best] if isinstance(best, int) else best):
                model.lm_head.weight[token_id, last] = 1.0 / (rank + 1)
    return model


def upper_table() -> dict[int, int]:
    """A prompt that ends in a lower-case letter is answered by that letter in upper case, then the end token."""
    return {ord(c): ord(c.upper()) for c in "abcdefghijklmnopqrstuvwxyz"} | dict.fromkeys(range(65, 91), EOS)


def script(trigger: str, text: str, end: int = EOS) -> dict[int, int]:
    """After `trigger` comes `text`, then `end`. All bytes of trigger and text must differ."""
    chain = [*(trigger + text).encode(), end]
    assert len(set(chain)) == len(chain), "a byte that comes twice has two successors"
    return dict(pairwise(chain))


def thinking_model() -> LlamaForCausalLM:
    """After `a` it thinks `hm` and answers `YES`, after `b` it answers `B`, after `c` comes `olol` without end."""
    thinking = [ord("a"), THINK, *b"\nhm", END_THINK, *b" YES", EOS]
    return table_model(dict(pairwise(thinking)) | dict(pairwise([*b"bB", EOS])) | dict(pairwise(b"colo")))


def uniform_model() -> LlamaForCausalLM:
    """Every printable ASCII byte is equally likely and nothing else possible: the output is the sampler's draws."""
    model = table_model({})
    with torch.no_grad():
        model.lm_head.weight.fill_(-50.0)
        model.lm_head.weight[32:127] = 0.0
    return model


def poison(model: LlamaForCausalLM, char: str = "!") -> LlamaForCausalLM:
    """From the first `char` of a sequence on, its hidden states are not finite."""
    with torch.no_grad():
        model.model.embed_tokens.weight[ord(char)] = float("inf")
    return model


def context_model(
    seed: int = 0, *, std: float = 0.4, head_dim: int = 16, heads: int = 4, kv_heads: int = 2
) -> LlamaForCausalLM:
    """A random two-layer Llama of any head shape."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **_IDS,
        **_SIZES,
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=512,
        initializer_range=std,
        tie_word_embeddings=False,
    )
    return _without_specials(LlamaForCausalLM(config))


def tiny_qwen3(seed: int = 0, *, std: float = 0.4) -> Qwen3ForCausalLM:
    """A random Qwen3: query and key norms, a head size that is not hidden_size / heads."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        **_IDS,
        **_SIZES,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=512,
        initializer_range=std,
        tie_word_embeddings=False,
    )
    return _without_specials(Qwen3ForCausalLM(config))


def tiny_gemma2(seed: int = 0, *, std: float = 0.2) -> Gemma2ForCausalLM:
    """A random Gemma-2: a sliding layer (24 tokens) and a full one, both soft caps small enough to matter.

    Eager attention, since transformers' `sdpa` leaves the attention soft cap out.
    """
    torch.manual_seed(seed)
    config = Gemma2Config(
        **_IDS,
        **_SIZES,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=6,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
        max_position_embeddings=512,
        initializer_range=std,
        tie_word_embeddings=False,  # tied, so wide an init would only echo the last token
    )
    model = Gemma2ForCausalLM(config)
    model.set_attn_implementation("eager")
    return _without_specials(model)


def tiny_gpt2(seed: int = 0, *, std: float = 0.4) -> GPT2LMHeadModel:
    """A random GPT-2: learned positions (512), tied weights, fused query/key/value, no grouped heads."""
    torch.manual_seed(seed)
    config = GPT2Config(
        **_IDS, n_positions=512, n_embd=64, n_layer=2, n_head=4, initializer_range=std,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return _without_specials(GPT2LMHeadModel(config))


def save_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder that transformers loads, and return it.

    `generation_config` replaces the file of that name; None keeps what transformers writes (the config's end token).
    """
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(dict(generation_config)), encoding="utf-8")
    return folder


_CORPUS = (
    "user\nassistant\nsystem\nHello there, how is the weather? Let's think step by step.\n\nThe answer is 42.\n\n" * 3
)


def _finish_trained(backend: Tokenizer, chat_template: str | None, add_bos: bool) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    backend.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    if add_bos:
        bos = [("<bos>", backend.token_to_id("<bos>"))]
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=bos)
    return wrap_tokenizer(backend, chat_template)


_IDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
_SIZES: dict[str, Any] = {"intermediate_size": 128, "num_hidden_layers": 2}


def _without_specials(model: ModelT) -> ModelT:
    """Zero the output rows of the specials and of the ids the tokenizer lacks: their logits stay 0, never the best."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight[256:] = 0.0
    return _float32(model)


def _float32(model: ModelT) -> ModelT:
    model.float()  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    return model
