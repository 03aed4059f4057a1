"""How the engine is built from a loaded model, and what its largest steps take of a GPU's memory.

The only place that knows all parts of the engine. Memory is measured by running the real loop on made-up rows over a
pool of one block: every token of every row goes to the same few slots, so that nothing but the pool's size is missing.
What comes out means nothing and is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from batchgen.engine.admission import ExpectedTokens
from batchgen.engine.block_pool import BlockPool
from batchgen.engine.engine import Engine
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Request, TokenLogprobs
from batchgen.engine.runner import ModelRunner
from batchgen.engine.sampler import Sampler
from batchgen.engine.scheduler import Scheduler
from batchgen.engine.step import MAX_PROMPT_LOGITS, OutOfMemory, ScheduledChunk, SchedulerOutput
from batchgen.errors import CapacityError
from batchgen.models.attention import StepAttention, install
from batchgen.models.backends import Backend
from batchgen.models.cuda_graphs import DecodeGraphs
from batchgen.models.device import peak_memory, release_freed_memory
from batchgen.models.kv_cache import allocate
from batchgen.models.probe import AttentionLayer
from batchgen.sampling_params import SamplingParams
from batchgen.stats.counters import RunStats


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that decides time and memory and no answer; all of it resolved."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_batched_tokens: int
    expected_tokens: int | None  # None: learnt from finished rows
    prefix_cache: bool
    max_model_len: int  # for the comparison with a static reservation
    by_prefix: bool  # requests come in depth-first order; else the least recently used block is evicted
    lag: int = 0  # steps that may be under way while the next one is scheduled
    replay_decodes: bool = False  # record the forward of decode steps once a size; for a backend that can be replayed

    @property
    def max_blocks(self) -> int:
        """Of one row."""
        return min(-(-self.max_model_len // self.block_size), self.num_blocks)


def assemble_engine(
    model: PreTrainedModel,
    layers: Sequence[AttentionLayer],
    backend: Backend,
    unused_token_ids: npt.ArrayLike,
    settings: EngineSettings,
) -> Engine:
    """Scheduler and runner; see `assemble_runner`."""
    runner = assemble_runner(model, layers, backend, unused_token_ids, settings)
    return Engine(make_scheduler(settings), runner, RunStats(settings.block_size, settings.max_model_len))


def assemble_runner(
    model: PreTrainedModel,
    layers: Sequence[AttentionLayer],
    backend: Backend,
    unused_token_ids: npt.ArrayLike,
    settings: EngineSettings,
) -> ModelRunner:
    """Allocate the KV cache and connect the model to it. `model` was built with our attention implementation."""
    caches = allocate(layers, settings.num_blocks, settings.block_size, model.dtype, model.device)
    attention = StepAttention(backend, caches)
    install(model, [model.get_submodule(layer.module) for layer in layers], attention.layer)
    sampler = Sampler(torch.from_numpy(np.asarray(unused_token_ids, np.int64)).to(model.device), backend)
    graphs = None
    if settings.replay_decodes:
        graphs = DecodeGraphs(model, attention, settings.max_num_seqs, settings.max_blocks)
    return ModelRunner(model, attention, sampler, settings.block_size, lag=settings.lag, graphs=graphs)


def make_scheduler(settings: EngineSettings) -> Scheduler:
    """Scheduler, prefix cache and pool; no model needed."""
    pool = BlockPool(settings.num_blocks)
    cache = PrefixCache(pool, settings.block_size, enabled=settings.prefix_cache, lru=not settings.by_prefix)
    return Scheduler(
        cache,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        expected_tokens=ExpectedTokens(settings.expected_tokens),
    )


def measure_steps(
    model: PreTrainedModel,
    layers: Sequence[AttentionLayer],
    backend: Backend,
    unused_token_ids: npt.ArrayLike,
    settings: EngineSettings,
    params: SamplingParams,
) -> int:
    """Bytes that steps take at most beside weights and KV, on a device whose memory can be measured.

    `params` ask for all that any row asks for. Raises CapacityError.
    """

    def run() -> None:
        runner = assemble_runner(model, layers, backend, unused_token_ids, replace(settings, num_blocks=1))
        for step in largest_steps(settings, params):
            runner.start(step).outcomes()

    try:
        return peak_memory(model.device, run)
    except OutOfMemory:
        raise CapacityError(
            f"the model fits, but beside it a step of {settings.max_batched_tokens} tokens and {settings.max_num_seqs} "
            "rows does not; lower engine.max_batched_tokens and engine.max_num_seqs, or use a smaller model"
        ) from None
    finally:
        release_freed_memory(model.device)


def largest_steps(settings: EngineSettings, params: SamplingParams) -> list[SchedulerOutput]:
    """One with the most tokens and logits, and two that only decode the most rows: the second one is a replay."""
    num_scored = 0 if params.prompt_logprobs is None else MAX_PROMPT_LOGITS
    most_rows = min(settings.max_num_seqs, settings.max_batched_tokens)
    num_rows = max(min(most_rows, settings.max_batched_tokens - num_scored), 1)
    lengths = [settings.max_batched_tokens - (num_rows - 1)] + [1] * (num_rows - 1)
    decode = replace(params, n=1, prompt_logprobs=None)
    decodes = [_step([1] * most_rows, decode, settings.block_size) for _ in range(2)]
    return [_step(lengths, params, settings.block_size), *decodes]


def _step(lengths: Sequence[int], params: SamplingParams, block_size: int) -> SchedulerOutput:
    """Whole prompts of these lengths, all in block 0; the first row has `params.n` samples, and what it scores fits."""
    chunks = []
    for row, length in enumerate(lengths):
        requests = [_request(row, length, params) for _ in range(1 if row else params.n)]
        requests[0].block_table = [0] * -(-length // block_size)
        known = TokenLogprobs(0, 0.0, 1, ())  # of the prompt's tokens but for the last that one step may score
        requests[0].prompt_logprobs += [known] * max(length - 1 - MAX_PROMPT_LOGITS, 0)
        chunks.append(ScheduledChunk(requests[0], 0, length, requests))
    return SchedulerOutput(0, chunks=chunks)


def _request(row: int, length: int, params: SamplingParams) -> Request:
    return Request(row, np.zeros(length, np.int32), params, rng_key=row, max_tokens=1)
