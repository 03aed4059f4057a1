"""Engines on tiny models, prompts that share prefixes, and what transformers' `generate` gives for each alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from transformers import PreTrainedModel

from batchgen.engine.build import EngineSettings, assemble_engine
from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.fuse import fuse
from batchgen.models.probe import AttentionLayer, probe_attention
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import Backend, CpuBackend, ReferenceBackend
from batchgen_kernels.triton import TritonBackend
from tests.tiny_models import VOCAB_SIZE, context_model, tiny_gemma2, tiny_gpt2, tiny_qwen3

MAX_TOKENS = 20
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": context_model,
    "qwen3": tiny_qwen3,
    "gemma2": tiny_gemma2,
    "gpt2": tiny_gpt2,
}
BACKENDS: dict[str, Callable[[], Backend]] = {
    "cpu": CpuBackend,
    "fused": CpuBackend,  # with the layers of models/fuse.py
    "reference": ReferenceBackend,
    "triton": lambda: TritonBackend(min_saved_bytes=-math.inf),  # sharing whatever can be shared
}


def make_prompts() -> list[list[int]]:
    """Lengths 1, 15, 16, 17, 33 and 200, and three more that share their first 40 tokens with the longest.

    Their first tokens grow, so that the long ones are visited last, when the short ones are running.
    """
    generator = np.random.default_rng(0)
    lengths = (1, 15, 16, 17, 33, 200)
    prompts = [[first, *generator.integers(0, 256, length - 1).tolist()] for first, length in enumerate(lengths)]
    return prompts + [prompts[-1][:40] + generator.integers(0, 256, extra).tolist() for extra in (0, 5, 24)]


PROMPTS = make_prompts()


@cache
def expected(family: str) -> list[list[int]]:
    """What `generate` gives for each prompt alone."""
    model = FAMILIES[family]()
    return [generate(model, prompt) for prompt in PROMPTS]


def generate(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, min_new_tokens=MAX_TOKENS, do_sample=False
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def probe(model: PreTrainedModel) -> list[AttentionLayer]:
    with torch.device("meta"):
        meta = type(model)._from_config(  # type: ignore[no-untyped-call]
            model.config, attn_implementation=IMPLEMENTATION, dtype=torch.bfloat16
        )
    return probe_attention(meta)


def make_engine(model: PreTrainedModel, backend: str = "reference", **settings: int | bool | None) -> Engine:
    model.set_attn_implementation(IMPLEMENTATION)
    defaults: dict[str, int | bool | None] = {
        "num_blocks": 200,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_batched_tokens": 64,
        "expected_tokens": None,
        "prefix_cache": True,
        "max_model_len": 512,
        "by_prefix": True,
    }
    merged = EngineSettings(**{**defaults, **settings})  # type: ignore[arg-type]
    layers = probe(model)
    if backend == "fused":
        fuse(model)
    return assemble_engine(model, layers, BACKENDS[backend](), [VOCAB_SIZE - 1], merged)


def make_requests(prompts: Sequence[Sequence[int]], block_size: int, *, in_order: bool = True) -> list[Request]:
    """Requests in depth-first order, or in the order given with no future known."""
    store = PackedTokens.pack(prompts)
    by_tokens = lexicographic_order(store, range(len(prompts)))
    order = visiting_order(by_tokens, store, [MAX_TOKENS] * len(prompts), block_size)
    rows: list[int] = order.positions.tolist()
    shared: list[int | None] = order.shared.tolist()
    if not in_order:
        rows, shared = list(range(len(prompts))), [None] * len(prompts)
    return [
        Request(row, store[row], SamplingParams(), rng_key=row, max_tokens=MAX_TOKENS, shared_with_next=share)
        for row, share in zip(rows, shared, strict=True)
    ]


def run(engine: Engine, requests: Sequence[Request]) -> dict[int, list[int]]:
    """Drive the engine with an integrity check after every step; nothing may be held at the end."""
    outputs: dict[int, list[int]] = {}
    for finished in engine.run(requests):
        outputs |= {request.row_index: request.output_token_ids for request in finished}
        engine.scheduler.check_integrity()
    assert engine.scheduler.cache.pool.num_used == 0
    return outputs
