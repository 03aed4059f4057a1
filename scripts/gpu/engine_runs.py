"""How gpu_check.py builds models and engines, and drives an engine over a workload. Knows no check and no limit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from batchgen.engine.build import EngineSettings, assemble_engine
from batchgen.engine.engine import Engine, InFlight
from batchgen.engine.request import Request
from batchgen.engine.runner import ModelRunner
from batchgen.engine.step import SchedulerOutput
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.cuda_graphs import DecodeGraphs
from batchgen.models.kv_cache import block_bytes
from batchgen.models.probe import AttentionLayer, probe_attention
from batchgen_kernels import Backend, ReferenceBackend
from batchgen_kernels.triton import TritonBackend
from scripts.gpu.machine import Machine
from scripts.gpu.workloads import Workload
from scripts.roofline import StepWork

SHARE_ALL, SHARE_NONE = -math.inf, math.inf  # bytes that the shared path must save to be taken


def make_model(machine: Machine, attention: str) -> PreTrainedModel:
    """Make a model of the shape of Qwen3-0.6B with random weights, on the device."""
    torch.cuda.empty_cache()  # the KV pool of the step before; does nothing without a GPU
    config = Qwen3Config(**machine.scale.model, max_position_embeddings=4096, tie_word_embeddings=True)  # type: ignore[arg-type]
    with torch.device(machine.device):
        model = Qwen3ForCausalLM._from_config(config, dtype=machine.dtype, attn_implementation=attention)  # type: ignore[no-untyped-call]
    return model.eval()  # type: ignore[no-any-return]


def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """Probe the attention layers of a model on the meta device."""
    with torch.device("meta"):
        meta = type(model)._from_config(model.config, attn_implementation=IMPLEMENTATION)  # type: ignore[no-untyped-call]
    return probe_attention(meta)


def make_engine(
    machine: Machine,
    model: PreTrainedModel,
    work: Workload,
    backend: Backend,
    *,
    is_plain: bool = False,
    block_size: int = 16,
) -> tuple[Engine, list[Request]]:
    """Build an engine with KV blocks for all of the work, or for what the memory holds; return the requests too.

    `is_plain` turns off what only a run on a GPU has: results one step late, and CUDA graphs.
    """
    model.set_attn_implementation(IMPLEMENTATION)
    layers = attention_layers(model)
    num_blocks = sum(-(-(len(p) + n) // block_size) for p, n in zip(work.prompts, work.max_tokens, strict=True)) + 1
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        num_blocks = min(num_blocks, int(free * 0.8) // block_bytes(layers, block_size, model.dtype))
    longest = max(map(len, work.prompts)) + max(work.max_tokens)
    settings = EngineSettings(
        num_blocks, block_size, len(work.prompts), machine.scale.max_batched_tokens, None, True, longest, True,
        lag=0 if is_plain else 1, replay_decodes=not is_plain,
    )  # fmt: skip
    engine = assemble_engine(model, layers, backend, [], settings)
    return engine, work.requests(block_size)


@dataclass(frozen=True, slots=True)
class Run:
    """What a workload took and gave."""

    seconds: float
    steps: list[StepWork]
    outputs: dict[int, list[int]]  # index of a prompt -> its completion
    graphs: DecodeGraphs | None

    @property
    def can_record(self) -> bool:
        """Whether the model's forward can be captured in a CUDA graph."""
        return self.graphs is not None and self.graphs.can_record

    def figures(self, work: Workload) -> dict[str, Any]:
        """Return the figures of a step of gpu_check.py; `complete` is False where the time ended before the work."""
        num_tokens = sum(map(len, self.outputs.values()))
        return {
            "output tokens/s": num_tokens / self.seconds,
            "seconds": self.seconds,
            "steps": len(self.steps),
            "seconds recording graphs": self.graphs.seconds if self.graphs else 0.0,
            "complete": num_tokens == sum(work.max_tokens),
        }


def run_engine(
    machine: Machine,
    model: PreTrainedModel,
    work: Workload,
    min_saved_bytes: float | None = SHARE_ALL,
    deadline: float = math.inf,
    *,
    is_plain: bool = False,
) -> Run:
    """Drive the engine until the work ends, or until `deadline` on the clock of `time.perf_counter`."""
    backend = ReferenceBackend() if is_plain else TritonBackend(min_saved_bytes)
    engine, requests = make_engine(machine, model, work, backend, is_plain=is_plain)
    recorder = Recorder(engine.runner, is_shared=min_saved_bytes != SHARE_NONE)  # type: ignore[arg-type]
    engine.runner = recorder
    begin = time.perf_counter()
    for _ in engine.run(requests):
        if time.perf_counter() > deadline:
            break
    seconds = time.perf_counter() - begin
    outputs = {request.row_index: request.output_token_ids for request in requests}
    return Run(seconds, recorder.steps, outputs, recorder.runner.graphs)


@dataclass(slots=True)
class Recorder:
    """A runner that keeps the work of every step, with shared KV read once or by each row."""

    runner: ModelRunner
    is_shared: bool
    steps: list[StepWork] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return self.runner.lag

    def start(self, step: SchedulerOutput) -> InFlight:
        self.steps.append(step_work(step, self.runner.block_size, self.is_shared))
        return self.runner.start(step)


def step_work(step: SchedulerOutput, block_size: int, is_shared: bool) -> StepWork:
    """Return what a step computes. A chunk of one token counts as decoding."""
    decodes = [chunk for chunk in step.chunks if chunk.num_tokens == 1]
    blocks = {block for c in decodes for block in c.request.block_table[: c.stop // block_size]}
    partial = sum(c.stop % block_size for c in decodes)
    decode_pairs = sum(c.stop for c in decodes)
    return StepWork(
        num_tokens=step.num_tokens,
        num_sampled=len(step.sampled_requests),
        decode_pairs=decode_pairs,
        decode_kv_tokens=len(blocks) * block_size + partial if is_shared else decode_pairs,
        prefill_pairs=sum(_causal_pairs(c.start, c.stop) for c in step.chunks if c.num_tokens > 1),
    )


def _causal_pairs(start: int, stop: int) -> int:
    """Return the query-key pairs of tokens `start` to `stop`, each with itself and all before it."""
    return (stop * (stop + 1) - start * (start + 1)) // 2
