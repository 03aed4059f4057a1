"""The workloads of gpu_check.py as token ids. Knows no engine and no device but the sizes of `Machine.scale`.

W1 is nano-vllm's bench.py (256 random prompts of 100 to 1024 tokens, 100 to 1024 output tokens, temperature 0.6, seed
0); W3 is SGLang's generated-shared-prefix (64 groups of 16 prompts, 2048 shared and 128 own tokens, 256 output tokens).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from batchgen.engine.request import Request
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from scripts.gpu.scale import Scale


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, and how many tokens are generated for each."""

    prompts: list[list[int]]
    max_tokens: list[int]
    params: SamplingParams

    def warm_up(self) -> Workload:
        """Return the first two prompts, with two tokens each."""
        return Workload(self.prompts[:2], [2, 2], self.params)

    def requests(self, block_size: int) -> list[Request]:
        """Return requests in the order in which a job visits them; no token ends them early."""
        store = PackedTokens.pack(self.prompts)
        by_tokens = lexicographic_order(store, range(len(self.prompts)))
        order = visiting_order(by_tokens, store, self.max_tokens, block_size)
        return [
            Request(row, store[row], self.params, rng_key=row, max_tokens=self.max_tokens[row], shared_with_next=share)
            for row, share in zip(order.positions.tolist(), order.shared.tolist(), strict=True)
        ]


def w1(scale: Scale) -> Workload:
    """Draw W1 in the order of nano-vllm's bench.py, so that the lengths are the same."""
    count, low, high = scale.w1
    draws = random.Random(0)
    top = min(10000, scale.model["vocab_size"] - 1)
    prompts = [[draws.randint(0, top) for _ in range(draws.randint(low, high))] for _ in range(count)]
    return Workload(prompts, [draws.randint(low, high) for _ in range(count)], SamplingParams(temperature=0.6))


def w3(scale: Scale) -> Workload:
    """Draw W3, group by group."""
    groups, each, shared, own, output = scale.w3
    generator = np.random.default_rng(0)
    vocab = scale.model["vocab_size"]
    prompts = []
    for _ in range(groups):
        prefix = generator.integers(0, vocab, shared).tolist()
        prompts += [prefix + generator.integers(0, vocab, own).tolist() for _ in range(each)]
    return Workload(prompts, [output] * len(prompts), SamplingParams())
