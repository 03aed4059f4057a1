"""ModelRunner: a scheduler's decision to token ids, through the model. The only part of the engine that runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.engine.batch import make_batch
from batchgen.engine.outcome import Outcome
from batchgen.engine.sampler import Sampler
from batchgen.engine.scheduler import ScheduledChunk, SchedulerOutput
from batchgen.models.attention import StepAttention


class ModelRunner:
    """One flattened forward a step: prefill chunks and decodes together, logits only where a row samples."""

    def __init__(self, model: PreTrainedModel, attention: StepAttention, sampler: Sampler, block_size: int) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.block_size = block_size

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> list[Outcome]:
        """For every sampled chunk in order: the next token, or the error that ends the row.

        What the model says of prompt tokens goes straight to their requests: nothing is decided by it.
        """
        if not step.chunks:
            return []
        batch = make_batch(step.chunks, self.block_size, self.model.device)
        self.attention.begin(batch.attention)
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=batch.logits_at,
        )
        num_sampled = len(batch.sampled_requests)
        self._score(output.logits[0, num_sampled:], batch.scored)
        return self.sampler(output.logits[0, :num_sampled], batch.sampled_requests)

    def _score(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> None:
        """`logits` [scored places, vocab] -> the prompt logprobs of the chunks' requests."""
        start = 0
        for chunk in chunks:
            request, places = chunk.request, chunk.scored
            next_tokens = request.token_ids(places.start + 1, places.stop + 1)
            num_top = [request.params.prompt_logprobs or 0] * len(places)
            request.prompt_logprobs += self.sampler.score(logits[start : start + len(places)], next_tokens, num_top)
            start += len(places)
