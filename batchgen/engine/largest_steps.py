"""What the largest steps of a job take of a GPU's memory, found by running them on made-up rows.

The real loop over a pool of one block: every token of every row goes to the same few slots, so that nothing but the
pool's size is missing. What comes out means nothing and is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from batchgen.engine.assemble import EngineSettings, assemble_runner
from batchgen.engine.outcome import TokenLogprobs
from batchgen.engine.request import Request
from batchgen.engine.step import MAX_PROMPT_LOGITS, OutOfMemory, ScheduledChunk, SchedulerOutput
from batchgen.errors import CapacityError
from batchgen.models.attention import Backend
from batchgen.models.device import peak_memory, release_freed_memory
from batchgen.models.probe import AttentionLayer
from batchgen.sampling_params import SamplingParams


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
    return Request(row, np.zeros(length, np.int32), params, draw_key=row, max_tokens=1)
