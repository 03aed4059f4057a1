"""ModelRunner: a scheduler's decision to token ids, through the model. The only part of the engine that runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.engine.batch import make_batch
from batchgen.engine.engine import Ready
from batchgen.engine.outcome import Outcome
from batchgen.engine.sampler import Sampler
from batchgen.engine.step import OutOfMemory, ScheduledChunk, SchedulerOutput
from batchgen.models.attention import StepAttention
from batchgen.models.device import is_out_of_memory, release_freed_memory


class ModelRunner:
    """One flattened forward a step: prefill chunks and decodes together, logits only where a row samples."""

    lag = 0

    def __init__(self, model: PreTrainedModel, attention: StepAttention, sampler: Sampler, block_size: int) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.block_size = block_size

    @torch.inference_mode()
    def start(self, step: SchedulerOutput) -> Ready:
        """Compute a step.

        What the model says of prompt tokens goes straight to their requests: nothing is decided by it. Raises
        OutOfMemory.
        """
        if not step.chunks:
            return Ready([])
        try:
            return Ready(self._compute(step))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Only here is the error gone, and with it the frames that held the step's tensors.
        release_freed_memory(self.model.device)
        raise OutOfMemory

    def _compute(self, step: SchedulerOutput) -> list[Outcome]:
        batch = make_batch(step.chunks, self.block_size, self.model.device, step.repeats)
        self.attention.begin(batch.attention, step.copies)
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=batch.logits_at,
        )
        self._score(output.logits[0, batch.num_sampled :], batch.scored)
        logits = output.logits[0, : batch.num_sampled]
        if len(batch.draws) > len(logits):  # several samples of a row begin from one row of logits
            logits = logits[batch.draws]
        return self.sampler.choose(logits, step.sampled_requests).outcomes()

    def _score(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> None:
        """`logits` [scored places, vocab] -> the prompt logprobs of the chunks' requests."""
        start = 0
        for chunk in chunks:
            request, places = chunk.request, chunk.scored
            next_tokens = request.token_ids(places.start + 1, places.stop + 1)
            num_top = [request.params.prompt_logprobs or 0] * len(places)
            request.prompt_logprobs += self.sampler.score(logits[start : start + len(places)], next_tokens, num_top)
            start += len(places)
