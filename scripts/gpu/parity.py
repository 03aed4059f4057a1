"""Checks of the whole engine on a device: its tokens must equal those of other ways to compute them, in float32.

A wrong token is an AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from batchgen.sampling_params import SamplingParams
from scripts.gpu.engine_runs import run_engine
from scripts.gpu.machine import Machine
from scripts.gpu.workloads import Workload
from tests.tiny_models import context_model, tiny_gemma2, tiny_gpt2, tiny_qwen3

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": context_model,
    "qwen3": tiny_qwen3,
    "gemma2": tiny_gemma2,
    "gpt2": tiny_gpt2,
}


def check_loop(machine: Machine, _: float) -> dict[str, Any]:
    """Compare the loop of a GPU (CUDA graphs, results one step late, sampling on the device) with the plain loop.

    The plain loop attends and samples in torch. Rows are greedy and sampled.
    """
    prompts, wrong = _prompts(), []
    each = [SamplingParams(), SamplingParams(temperature=0.8, top_k=50, top_p=0.9)]
    for family, params in product(machine.scale.families, each):
        work = Workload(prompts, [machine.scale.parity_tokens + row for row in range(len(prompts))], params)
        plain, whole = (
            run_engine(machine, _model(machine, family), work, is_plain=is_plain) for is_plain in (True, False)
        )
        wrong += [f"{family} prompt {row}" for row in whole.outputs if whole.outputs[row] != plain.outputs[row]]
        assert whole.can_record, f"the forward of {family} was not captured"
    assert not wrong, f"tokens differ from the plain loop's: {', '.join(wrong)}"
    return {"equal completions": len(prompts) * len(each) * len(machine.scale.families)}


def check_parity(machine: Machine, _: float) -> dict[str, Any]:
    """Compare greedy tokens of the engine with those of transformers' `generate`, prompt by prompt."""
    prompts, num_tokens, wrong = _prompts(), machine.scale.parity_tokens, []
    for family in machine.scale.families:
        expected = [_generate(_model(machine, family), prompt, num_tokens) for prompt in prompts]
        work = Workload(prompts, [num_tokens] * len(prompts), SamplingParams())
        run = run_engine(machine, _model(machine, family), work)
        wrong += [f"{family} prompt {row}" for row in range(len(prompts)) if run.outputs[row] != expected[row]]
    assert not wrong, f"tokens differ from generate: {', '.join(wrong)}"
    return {"equal completions": len(prompts) * len(machine.scale.families)}


def _prompts() -> list[list[int]]:
    """Return short and long prompts, of which three share their first tokens."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 256, length).tolist() for length in (1, 16, 33, 60)]
    return prompts + [prompts[-1][:40] + generator.integers(0, 256, extra).tolist() for extra in (0, 5)]


def _model(machine: Machine, family: str) -> PreTrainedModel:
    return FAMILIES[family]().to(machine.device)  # type: ignore[arg-type,no-any-return]


def _generate(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    lengths = {"max_new_tokens": count, "min_new_tokens": count}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **lengths)  # type: ignore[operator]
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]
