"""Batched, prefix-shared, preempted output equals plain `generate`, one row at a time, in float32."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
from transformers import PreTrainedModel

from tests.engine.harness import (
    FAMILIES,
    PROMPTS,
    expected,
    generate,
    make_engine,
    make_requests,
    run,
)
from tests.pairwise import pairwise
from tests.tiny_models import context_model

HeadShape = tuple[int, int, int]  # head size, query heads, KV heads


@pytest.mark.parametrize(
    ("family", "block_size", "prefix_cache", "max_num_seqs"), pairwise([*FAMILIES], [8, 16, 32], [True, False], [1, 8])
)
def test_equals_generate(family: str, block_size: int, prefix_cache: bool, max_num_seqs: int) -> None:
    engine = make_engine(
        FAMILIES[family](), block_size=block_size, prefix_cache=prefix_cache, max_num_seqs=max_num_seqs
    )
    outputs = run(engine, make_requests(PROMPTS, block_size))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected(family)
    assert (engine.stats.prompt.hit > 0) == prefix_cache


@pytest.mark.parametrize(("family", "block_size", "prefix_cache"), pairwise([*FAMILIES], [8, 16, 32], [True, False]))
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


@pytest.mark.slow
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


@cache
def shape_model(shape: HeadShape) -> PreTrainedModel:
    head_dim, heads, kv_heads = shape
    return context_model(head_dim=head_dim, heads=heads, kv_heads=kv_heads)


@cache
def expected_of_shape(shape: HeadShape) -> list[list[int]]:
    return [generate(shape_model(shape), prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("shape", "block_size", "max_num_seqs"), pairwise([(64, 8, 2), (80, 3, 3), (96, 2, 1)], [8, 16, 32], [1, 6])
)
def test_head_shapes_equal_generate(shape: HeadShape, block_size: int, max_num_seqs: int) -> None:
    engine = make_engine(deepcopy(shape_model(shape)), "cpu", block_size=block_size, max_num_seqs=max_num_seqs)
    outputs = run(engine, make_requests(PROMPTS, block_size))
    assert [outputs[row] for row in range(len(PROMPTS))] == expected_of_shape(shape)


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
