"""A whole job with the loop as a GPU runs it: a step late, decode steps in static tensors, memory measured first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from batchgen.engine.build import EngineSettings
from batchgen.job import generate
from batchgen.job.run_config import RunConfig
from tests.end_to_end.harness import Result, TinyRunner
from tests.tiny_models import context_model

ROWS = [
    {"prompt": f"{'once upon a time ' * 3}{tail}", "how": how}
    for tail in ("a", "ab", "abc" * 9)
    for how in (
        {},
        {"temperature": 1, "top_p": 0.9, "n": 3},
        {"logprobs": 2, "min_tokens": 4, "stop": ["e"]},
        {"presence_penalty": 0.5, "temperature": 0.7, "top_k": 20},
        {"prompt_logprobs": 1},
        {"structured": {"choice": ["left", "right"]}},
    )
]


def run(run_tiny: TinyRunner) -> Result:
    return run_tiny(
        ROWS,
        model=context_model,
        input={"sampling": "how"},
        sampling={"max_tokens": 12, "seed": 5},
        engine={"attention": "torch", "max_num_seqs": 6, "max_batched_tokens": 48},
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    settings = generate._engine_settings

    def peak_memory(device: torch.device, work: Callable[[], None]) -> int:
        work()
        return 0

    def changed(config: RunConfig, num_blocks: int) -> EngineSettings:
        return replace(settings(config, num_blocks), lag=1, replay_decodes=True)

    def change() -> None:
        monkeypatch.setattr(generate, "_engine_settings", changed)
        monkeypatch.setattr(generate, "can_measure_memory", lambda device: True)
        monkeypatch.setattr("batchgen.engine.build.peak_memory", peak_memory)

    return change


def test_every_row_gets_the_plain_loops_answer(run_tiny: TinyRunner, as_on_a_gpu: Callable[[], None]) -> None:
    plain = run(run_tiny)
    as_on_a_gpu()
    loop = run(run_tiny)
    assert plain.exit_code == loop.exit_code == 0
    for column in ("completion", "finish_reason", "completion_tokens", "cached_tokens", "sample_index"):
        assert loop.column(column) == plain.column(column)
