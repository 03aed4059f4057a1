"""How a job is run never changes its answers: batches, blocks, cache, order, preemption; and what the report says."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.end_to_end.harness import Result, TinyRunner, prompts
from tests.pairwise import pairwise
from tests.tiny_models import context_model, tiny_gemma2, tiny_gpt2, tiny_qwen3

MAX_TOKENS = 20
SHAPES = {"16/4/2": (16, 4, 2), "64/8/2": (64, 8, 2), "80/3/3": (80, 3, 3), "96/2/1": (96, 2, 1)}
# Four prompts of 11 characters: 17 tokens with the six before them.
DIFFERENT = [f"{letter * 10}!" for letter in "abcd"]
# They share 16 tokens, the first block, and differ in the last.
SHARING = ["a" * 10 + letter for letter in "wbcd"]


def printable_model(shape: str = "16/4/2") -> LlamaForCausalLM:
    """A random model that answers in printable ASCII only, so that equal texts are equal tokens."""
    head_dim, heads, kv_heads = SHAPES[shape]
    model = context_model(head_dim=head_dim, heads=heads, kv_heads=kv_heads)
    with torch.no_grad():
        model.lm_head.weight[:32] = 0
        model.lm_head.weight[127:] = 0
    return model


MODELS = {shape: functools.partial(printable_model, shape) for shape in SHAPES}


def make_prompts() -> list[list[int]]:
    """Token ids: lengths 1, 15, 16, 17, 33 and 200, and three that share their first 40 tokens with the longest.

    Each ends in an ASCII character, so that no completion begins inside a character.
    """
    generator = np.random.default_rng(1)
    lists = [generator.integers(0, 256, length).tolist() for length in (1, 15, 16, 17, 33, 200)]
    lists[-1][39] = 0x41
    lists += [lists[-1][:40] + generator.integers(0, 256, extra).tolist() for extra in (0, 5, 24)]
    return [[*prompt[:-1], prompt[-1] % 128] for prompt in lists]


PROMPTS = make_prompts()


@functools.cache
def one_by_one(shape: str) -> list[str]:
    """What transformers' own `generate` answers to each prompt alone."""
    model = printable_model(shape)
    return [generate(model, prompt).decode("ascii") for prompt in PROMPTS]


def generate(model: PreTrainedModel, prompt: Sequence[int]) -> bytes:
    ids = torch.tensor([prompt])
    output = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, min_new_tokens=MAX_TOKENS, do_sample=False
    )
    return bytes(output[0, len(prompt) :].tolist())


def run(run_tiny: TinyRunner, model: Callable[[], PreTrainedModel] | None = None, **engine: Any) -> Result:
    """PROMPTS through a job."""
    result = run_tiny(
        pa.table({"ids": PROMPTS}),
        model=model or MODELS["16/4/2"],
        input={"token_ids": "ids"},
        sampling={"max_tokens": MAX_TOKENS},
        engine=engine,
    )
    assert result.exit_code == 0
    assert result.column("completion_tokens") == [MAX_TOKENS] * len(PROMPTS)
    return result


@pytest.mark.parametrize(
    ("shape", "block_size", "prefix_cache", "max_num_seqs"), pairwise([*SHAPES], [8, 16, 32], [True, False], [1, 6])
)
def test_equals_generate_one_by_one(
    run_tiny: TinyRunner, shape: str, block_size: int, prefix_cache: bool, max_num_seqs: int
) -> None:
    result = run(run_tiny, MODELS[shape], block_size=block_size, prefix_cache=prefix_cache, max_num_seqs=max_num_seqs)
    assert result.completions == one_by_one(shape)
    assert (result.report["num_hit_tokens"] > 0) == prefix_cache


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_gemma2, tiny_gpt2], ids=lambda make: make.__name__)
@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_other_families_equal_generate(
    run_tiny: TinyRunner, make: Callable[[], PreTrainedModel], max_num_seqs: int
) -> None:
    result = run(run_tiny, model=make, max_num_seqs=max_num_seqs)
    model = make()
    assert result.completions == [generate(model, prompt).decode(errors="replace") for prompt in PROMPTS]


@pytest.mark.parametrize(
    "engine",
    [
        {"order": "input"},
        {"order": "input", "num_blocks": 16},
        {"attention": "torch"},
        {"max_batched_tokens": 7},
    ],
    ids=str,
)
def test_other_settings_give_the_same_completions(run_tiny: TinyRunner, engine: dict[str, Any]) -> None:
    assert run(run_tiny, **engine).completions == one_by_one("16/4/2")


@pytest.mark.parametrize(("order", "prefix_cache"), [*itertools.product(("prefix", "input"), (True, False))])
def test_preemption_is_invisible(run_tiny: TinyRunner, order: str, prefix_cache: bool) -> None:
    """16 blocks hold the longest row (220 tokens, 14 blocks) and little beside it; growth is not expected."""
    result = run(run_tiny, num_blocks=16, expected_tokens=1, order=order, prefix_cache=prefix_cache)
    assert result.completions == one_by_one("16/4/2")
    assert result.report["num_preemptions"] >= 1
    assert result.report["num_recomputed_tokens"] >= 1
    assert result.report["peak_used_blocks"] <= 16


def test_cached_tokens_of_the_rows_are_the_hits_of_the_report(run_tiny: TinyRunner) -> None:
    """All three rows that share 40 tokens with the longest reuse two blocks of it, or it theirs: 3 x 32 tokens."""
    result = run(run_tiny)
    report = result.report
    assert report["num_hit_tokens"] == report["hit_ceiling"] == 96
    assert sum(result.column("cached_tokens")) == 96 + report["num_copied_tokens"]
    assert sum(result.column("prompt_tokens")) == report["num_prompt_tokens"]
    assert report["hit_rate"] == (96 + report["num_copied_tokens"]) / report["num_prompt_tokens"]


def test_without_a_cache_there_are_no_hits(run_tiny: TinyRunner) -> None:
    result = run(run_tiny, prefix_cache=False)
    assert set(result.column("cached_tokens")) == {0}
    assert (result.report["num_hit_tokens"], result.report["hit_rate"]) == (0, 0)


def test_fragmentation_counts_slots_not_blocks(run_tiny: TinyRunner) -> None:
    """4 x 17 tokens in 4 x 2 blocks of 16."""
    result = run_tiny(
        prompts(*DIFFERENT), sampling={"max_tokens": 1}, engine={"max_num_seqs": 4, "prefix_cache": False}
    )
    assert result.column("prompt_tokens") == [17] * 4
    assert result.report["peak_internal_fragmentation"] == 1 - 68 / 128 == 0.46875
    assert result.report["internal_fragmentation"] == 0.46875


def test_fragmentation_counts_a_shared_block_once(run_tiny: TinyRunner) -> None:
    """A first row alone (17 of 32 slots), whose block is then shared: 16 tokens and 4 x 1 in 1 + 4 blocks."""
    result = run_tiny(
        prompts("a" * 10 + "v", *SHARING),
        sampling={"max_tokens": 1},
        engine={"max_num_seqs": 4, "max_batched_tokens": 17},
    )
    assert sorted(result.column("cached_tokens")) == [0, 16, 16, 16, 16]
    assert result.report["num_steps"] == 2
    assert result.report["peak_internal_fragmentation"] == 1 - 20 / 80 == 0.75
    assert result.report["internal_fragmentation"] == (15 + 60) / (32 + 80)
