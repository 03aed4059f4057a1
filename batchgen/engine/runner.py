"""ModelRunner: a scheduler's decision to token ids, through the model. The only part of the engine that runs it."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from batchgen.engine.batch import make_batch
from batchgen.engine.sampler import Sampler
from batchgen.engine.step import SchedulerOutput
from batchgen.models.attention import StepAttention


class ModelRunner:
    """One flattened forward a step: prefill chunks and decodes together, logits only where a row samples."""

    def __init__(self, model: PreTrainedModel, attention: StepAttention, sampler: Sampler, block_size: int) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.block_size = block_size

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> list[int | str]:
        """For every sampled request in order: the next token id, or the error that ends it."""
        if not step.chunks:
            return []
        batch = make_batch(step.chunks, self.block_size, self.model.device)
        self.attention.begin(batch.attention, step.copies)
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=batch.sampled,
        )
        logits = output.logits[0]
        if len(batch.draws) > len(logits):  # several samples of a row begin from one row of logits
            logits = logits[batch.draws]
        return self.sampler(logits, step.sampled_requests)
