"""The loop as a GPU runs it, on the CPU: results one step late, decode steps padded, in static tensors and replayed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from batchgen.engine.engine import Engine
from batchgen.engine.runner import ModelRunner
from batchgen.engine.step import SchedulerOutput
from batchgen.models.cuda_graphs import graph_sizes
from batchgen.models.transfer import Recorder
from batchgen.sampling_params import SamplingParams
from tests.engine.harness import FAMILIES, PROMPTS, expected, make_engine, make_requests, run
from tests.engine.samples import with_samples
from tests.tiny_models import context_model

LOOP: dict[str, Any] = {"lag": 1, "replay_decodes": True}


def outputs_of(engine: Engine) -> list[list[int]]:
    outputs = run(engine, make_requests(PROMPTS, 16))
    return [outputs[row] for row in range(len(PROMPTS))]


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family: str) -> None:
    assert outputs_of(make_engine(FAMILIES[family](), **LOOP)) == expected(family)


@pytest.mark.parametrize("settings", [{"replay_decodes": True}, {"lag": 1}], ids=["replay", "lag"])
def test_each_half_alone_equals_generate(settings: dict[str, Any]) -> None:
    assert outputs_of(make_engine(context_model(), **settings)) == expected("llama")


def test_preemption_is_invisible() -> None:
    engine = make_engine(context_model(), num_blocks=14, expected_tokens=1, **LOOP)
    assert outputs_of(engine) == expected("llama")
    assert engine.stats.num_preemptions >= 1


@pytest.mark.slow
def test_triton_backend_equals_generate() -> None:
    rows, num_tokens = [1, 6, 7, 8], 4
    requests = make_requests([PROMPTS[row] for row in rows], 16)
    for request in requests:
        request.max_tokens = num_tokens
    outputs = run(make_engine(FAMILIES["qwen3"](), "triton", **LOOP), requests)
    assert [outputs[index] for index in range(len(rows))] == [expected("qwen3")[row][:num_tokens] for row in rows]


def sampled(**settings: Any) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """What rows of three samples give that draw with filters, and their logprobs; some of them are scored too."""
    requests = make_requests(PROMPTS[:6], 16)
    for request in requests:
        score = 0 if request.row_index % 3 == 0 else None
        request.params = SamplingParams(temperature=1.0, top_k=20, top_p=0.9, n=3, logprobs=1, prompt_logprobs=score)
        request.max_tokens = 7 + request.row_index
    engine = make_engine(context_model(), **settings)
    done = [request for finished in engine.run(with_samples(requests, 3)) for request in finished]
    return {
        (request.row_index, request.sample_index): (
            request.output_token_ids,
            [info.logprob for info in (*request.output_logprobs, *request.prompt_logprobs)],
        )
        for request in done
    }


def test_samples_filters_and_logprobs_are_those_of_the_plain_loop() -> None:
    plain, loop = sampled(), sampled(**LOOP)
    assert {key: tokens for key, (tokens, _) in loop.items()} == {key: tokens for key, (tokens, _) in plain.items()}
    for key, (_, logprobs) in plain.items():
        assert loop[key][1] == pytest.approx(logprobs, abs=1e-5)


def test_decode_steps_are_replayed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: Counter[int] = Counter()

    def record(self: Recorder, call: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            replayed.update([0])
            call()

        return replay

    monkeypatch.setattr(Recorder, "record", record)
    engine = make_engine(context_model(), max_num_seqs=3, **LOOP)
    requests = make_requests([[1], [2], [3]], 16)
    for request, max_tokens in zip(requests, (4, 4, 9), strict=True):
        request.max_tokens = max_tokens
    run(engine, requests)
    # Prompts of one token decode at once: 4 steps of three rows, 5 of one; the first one of a size is not replayed.
    assert replayed[0] == 3 + 4


def test_a_forward_that_cannot_be_captured_runs_plainly_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def record(self: Recorder, call: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(Recorder, "record", record)
    with caplog.at_level(logging.WARNING, "batchgen"):
        assert outputs_of(make_engine(context_model(), **LOOP)) == expected("llama")
    [warning] = caplog.messages
    assert warning.endswith("(CUDA error: operation not permitted when stream is capturing)")


class NoReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where the host would wait for a value of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "masked_select"), func
        return func(*args, **(kwargs or {}))


class WatchedRunner:
    """A runner whose steps must begin without a read."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.lag = runner.lag

    def start(self, step: SchedulerOutput) -> Any:
        with NoReads():  # type: ignore[no-untyped-call]
            return self.runner.start(step)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_reads_from_the_device_while_it_begins(family: str) -> None:
    engine = make_engine(FAMILIES[family](), **LOOP)
    engine.runner = WatchedRunner(engine.runner)  # type: ignore[arg-type]
    requests = make_requests(PROMPTS[3:], 16)
    for request in requests:
        request.max_tokens = 6
    requests[0].params = SamplingParams(temperature=0.8, top_p=0.9, logprobs=2)
    requests[1].params = SamplingParams(logit_bias=((65, 5.0),), min_tokens=3, frequency_penalty=0.5)
    requests[2].params = SamplingParams(prompt_logprobs=0)
    assert len(run(engine, requests)) == len(requests)


def test_the_watch_sees_a_read() -> None:
    with pytest.raises(AssertionError), NoReads():  # type: ignore[no-untyped-call]
        Tensor.item(torch.ones(1))


@pytest.mark.parametrize(
    ("max_rows", "sizes"), [(1, [1]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64])]
)
def test_sizes_end_with_the_most_rows(max_rows: int, sizes: list[int]) -> None:
    assert graph_sizes(max_rows) == sizes
