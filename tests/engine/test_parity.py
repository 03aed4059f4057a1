"""Batched, prefix-shared, preempted output equals plain `generate`, one row at a time, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
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


@pytest.mark.parametrize("max_num_seqs", [1, 8])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family: str, block_size: int, prefix_cache: bool, max_num_seqs: int) -> None:
    engine = make_engine(
        FAMILIES[family](), block_size=block_size, prefix_cache=prefix_cache, max_num_seqs=max_num_seqs
    )
    outputs = run(engine, make_requests(PROMPTS, block_size))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected(family)
    assert (engine.stats.prompt.hit > 0) == prefix_cache


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_is_invisible(family: str, block_size: int, prefix_cache: bool) -> None:
    engine = make_engine(
        FAMILIES[family](),
        block_size=block_size,
        prefix_cache=prefix_cache,
        num_blocks=224 // block_size,
        expected_tokens=1,
    )
    outputs = run(engine, make_requests(PROMPTS, block_size))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected(family)
    assert engine.stats.num_preemptions >= 1


@pytest.mark.parametrize("num_blocks", [200, 14])
def test_late_results_equal_generate(num_blocks: int) -> None:
    engine = make_engine(context_model(), lag=1, num_blocks=num_blocks, expected_tokens=1)
    outputs = run(engine, make_requests(PROMPTS, 16))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected("llama")
    assert (engine.stats.num_preemptions > 0) == (num_blocks == 14)


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_layers_equal_generate(family: str) -> None:
    outputs = run(make_engine(FAMILIES[family](), "fused"), make_requests(PROMPTS, 16))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_cpu_backend_equals_generate(family: str) -> None:
    outputs = run(make_engine(FAMILIES[family](), "cpu"), make_requests(PROMPTS, 16))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected(family)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_triton_backend_equals_generate(family: str) -> None:
    """In the interpreter, so with few rows and tokens; three of the rows share their first blocks."""
    rows, num_tokens = [1, 6, 7, 8], 4
    requests = make_requests([PROMPTS[row] for row in rows], 16)
    for request in requests:
        request.max_tokens = num_tokens
    outputs = run(make_engine(FAMILIES[family](), "triton"), requests)
    assert [outputs[index] for index in range(len(rows))] == [expected(family)[row][:num_tokens] for row in rows]


def test_input_order_equals_generate() -> None:
    engine = make_engine(context_model(), by_prefix=False, num_blocks=24)
    outputs = run(engine, make_requests(PROMPTS, 16, in_order=False))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected("llama")


@pytest.mark.parametrize("max_batched_tokens", [1, 7, 1000])
def test_any_token_budget_equals_generate(max_batched_tokens: int) -> None:
    outputs = run(make_engine(context_model(), max_batched_tokens=max_batched_tokens), make_requests(PROMPTS, 16))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected("llama")


@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 8, 2), (80, 3, 3), (96, 2, 1)])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_head_shapes_equal_generate(head_dim: int, heads: int, kv_heads: int, block_size: int) -> None:
    def make() -> PreTrainedModel:
        return context_model(head_dim=head_dim, heads=heads, kv_heads=kv_heads)

    model = make()
    alone = [generate(model, prompt) for prompt in PROMPTS]
    for max_num_seqs in (1, 6):
        outputs = run(
            make_engine(make(), "cpu", block_size=block_size, max_num_seqs=max_num_seqs),
            make_requests(PROMPTS, block_size),
        )
        assert [outputs[row] for row in range(len(PROMPTS))] == alone


def test_rows_of_every_kind_share_a_step() -> None:
    """What makes the parity above worth something: prefill chunks, decodes and shared prefixes do meet in one step."""
    engine = make_engine(context_model(), max_batched_tokens=16)
    seen = set()
    for request in make_requests(PROMPTS, 16):
        engine.scheduler.add(request)
    for _ in range(40):
        step = engine.scheduler.schedule()
        seen.add((any(c.num_tokens > 1 for c in step.chunks), any(c.num_tokens == 1 for c in step.chunks)))
        engine.scheduler.update(step, engine.runner.start(step).outcomes())
    assert (True, True) in seen


def test_half_shared_blocks_are_copied_and_equal_generate() -> None:
    engine = make_engine(context_model(), max_num_seqs=1)
    outputs = run(engine, make_requests(PROMPTS, 16))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected("llama")
    assert engine.stats.prompt.copied > 0
