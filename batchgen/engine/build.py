"""Builds the engine from a loaded model, and measures the GPU memory of its largest steps.

The only module that knows all parts of the engine. Memory is measured by running the real runner on dummy rows over a
pool of one block: all tokens of all rows share its few slots, so everything but the pool has its full size. The outputs
are meaningless and discarded.
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
    """The resolved settings that affect time and memory, but no output."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_batched_tokens: int
    expected_tokens: int | None  # None: learnt from finished rows
    prefix_cache: bool
    max_model_len: int  # for the report: compares with a static reservation of this length
    by_prefix: bool  # requests come in depth-first order; False: the least recently used block is evicted
    lag: int = 0  # steps that may be in flight while the next one is scheduled
    replay_decodes: bool = False  # record decode forwards once per batch size, with a backend that supports replay

    @property
    def max_blocks(self) -> int:
        """The most blocks that one row can hold."""
        return min(-(-self.max_model_len // self.block_size), self.num_blocks)


def assemble_engine(
    model: PreTrainedModel,
    layers: Sequence[AttentionLayer],
    backend: Backend,
    unused_token_ids: npt.ArrayLike,
    settings: EngineSettings,
) -> Engine:
    """Return an engine with a new scheduler and runner; see `assemble_runner`."""
    runner = assemble_runner(model, layers, backend, unused_token_ids, settings)
    return Engine(make_scheduler(settings), runner, RunStats(settings.block_size, settings.max_model_len))


def assemble_runner(
    model: PreTrainedModel,
    layers: Sequence[AttentionLayer],
    backend: Backend,
    unused_token_ids: npt.ArrayLike,
    settings: EngineSettings,
) -> ModelRunner:
    """Allocate the KV cache and attach the model to it. `model` was loaded with batchgen's attention implementation."""
    caches = allocate(layers, settings.num_blocks, settings.block_size, model.dtype, model.device)
    attention = StepAttention(backend, caches)
    install(model, [model.get_submodule(layer.module) for layer in layers], attention.layer)
    sampler = Sampler(torch.from_numpy(np.asarray(unused_token_ids, np.int64)).to(model.device), backend)
    graphs = None
    if settings.replay_decodes:
        graphs = DecodeGraphs(model, attention, settings.max_num_seqs, settings.max_blocks)
    return ModelRunner(model, attention, sampler, settings.block_size, lag=settings.lag, graphs=graphs)


def make_scheduler(settings: EngineSettings) -> Scheduler:
    """Return a scheduler with a new prefix cache and pool; needs no model."""
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
    """Return the peak memory of a step in bytes, without weights and KV cache; the device must be able to measure it.

    `params` combine everything that any row asks for. Raises CapacityError if the largest step does not fit.
    """

    def run() -> None:
        runner = assemble_runner(model, layers, backend, unused_token_ids, replace(settings, num_blocks=1))
        for step in largest_steps(settings, params):
            runner.start(step).outcomes()

    try:
        return peak_memory(model.device, run)
    except OutOfMemory:
        raise CapacityError(
            f"the model fits, but a step of {settings.max_batched_tokens} tokens and {settings.max_num_seqs} rows does "
            "not fit beside it; lower engine.max_batched_tokens and engine.max_num_seqs, or use a smaller model"
        ) from None
    finally:
        release_freed_memory(model.device)


def largest_steps(settings: EngineSettings, params: SamplingParams) -> list[SchedulerOutput]:
    """Return a step with the most tokens and logits and two decode steps with the most rows; the second is replayed."""
    num_scored = 0 if params.prompt_logprobs is None else MAX_PROMPT_LOGITS
    most_rows = min(settings.max_num_seqs, settings.max_batched_tokens)
    num_rows = max(min(most_rows, settings.max_batched_tokens - num_scored), 1)
    lengths = [settings.max_batched_tokens - (num_rows - 1)] + [1] * (num_rows - 1)
    decode = replace(params, n=1, prompt_logprobs=None)
    decodes = [_step([1] * most_rows, decode, settings.block_size) for _ in range(2)]
    return [_step(lengths, params, settings.block_size), *decodes]


def _step(lengths: Sequence[int], params: SamplingParams, block_size: int) -> SchedulerOutput:
    """Return a step that computes whole prompts of these lengths, all in block 0.

    The first row has `params.n` samples, and scores no more prompt tokens than one step may.
    """
    chunks = []
    for row, length in enumerate(lengths):
        requests = [_request(row, length, params) for _ in range(1 if row else params.n)]
        requests[0].block_table = [0] * -(-length // block_size)
        known = TokenLogprobs(0, 0.0, 1, ())  # of all prompt tokens but the last MAX_PROMPT_LOGITS
        requests[0].prompt_logprobs += [known] * max(length - 1 - MAX_PROMPT_LOGITS, 0)
        chunks.append(ScheduledChunk(requests[0], 0, length, requests))
    return SchedulerOutput(0, chunks=chunks)


def _request(row: int, length: int, params: SamplingParams) -> Request:
    return Request(row, np.zeros(length, np.int32), params, rng_key=row, max_tokens=1)
