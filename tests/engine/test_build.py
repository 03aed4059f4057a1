"""Steps that are run to see what they take: as many tokens, logits and rows as a job can ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from batchgen.engine.build import EngineSettings, largest_steps, measure_steps
from batchgen.engine.step import MAX_PROMPT_LOGITS, OutOfMemory
from batchgen.errors import CapacityError
from batchgen.models.attention import IMPLEMENTATION
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import ReferenceBackend
from tests.engine.harness import probe
from tests.tiny_models import VOCAB_SIZE, context_model

EVERYTHING = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, n=3, logprobs=2, prompt_logprobs=0)


def settings(max_num_seqs: int = 4, max_batched_tokens: int = 600) -> EngineSettings:
    return EngineSettings(1, 16, max_num_seqs, max_batched_tokens, None, True, 1024, True, lag=1, replay_decodes=True)


def measure(monkeypatch: pytest.MonkeyPatch, work: Callable[[torch.device, Callable[[], None]], int]) -> int:
    monkeypatch.setattr("batchgen.engine.build.peak_memory", work)
    model = context_model()
    model.set_attn_implementation(IMPLEMENTATION)
    return measure_steps(model, probe(model), ReferenceBackend(), [VOCAB_SIZE - 1], settings(), EVERYTHING)


def test_the_first_one_has_all_tokens_rows_and_scored_places() -> None:
    first, *decodes = largest_steps(settings(), EVERYTHING)
    assert first.num_tokens == 600
    assert (len(first.chunks), len(first.sampled_requests)) == (4, 4 + 2)
    assert sum(len(chunk.scored) for chunk in first.chunks) == MAX_PROMPT_LOGITS
    assert [step.num_tokens for step in decodes] == [4, 4]


def test_rows_are_as_many_as_there_are_tokens() -> None:
    first, *_ = largest_steps(settings(max_num_seqs=50, max_batched_tokens=8), SamplingParams())
    assert [chunk.num_tokens for chunk in first.chunks] == [1] * 8


def test_the_real_loop_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(device: torch.device, run: Callable[[], None]) -> int:
        run()
        return 123

    assert measure(monkeypatch, work) == 123


def test_a_device_without_room_for_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_: Any) -> int:
        raise OutOfMemory

    with pytest.raises(CapacityError, match=r"a step of 600 tokens and 4 rows does not fit beside it; lower engine"):
        measure(monkeypatch, work)
