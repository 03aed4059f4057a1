"""How the engine is put together from a loaded model. The only place that knows all of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from batchgen.engine.block_pool import BlockPool
from batchgen.engine.engine import Engine
from batchgen.engine.expected_tokens import ExpectedTokens
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.runner import ModelRunner
from batchgen.engine.sampler import Sampler
from batchgen.engine.scheduler import Scheduler
from batchgen.models.attention import Backend, StepAttention, install
from batchgen.models.decode_graphs import DecodeGraphs
from batchgen.models.kv_cache import allocate
from batchgen.models.probe import AttentionLayer
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
