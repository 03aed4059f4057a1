"""ModelRunner: a scheduler's decision to token ids, through the model. The only part of the engine that runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.engine.batch import Batch, make_batch
from batchgen.engine.block_tables import BlockTables
from batchgen.engine.engine import Ready
from batchgen.engine.outcome import Outcome
from batchgen.engine.sampler import Sampler
from batchgen.engine.step import OutOfMemory, ScheduledChunk, SchedulerOutput
from batchgen.models.attention import StepAttention
from batchgen.models.decode_graphs import DecodeGraphs
from batchgen.models.device import is_out_of_memory, release_freed_memory


class ModelRunner:
    """One flattened forward a step: prefill chunks and decodes together, logits only where a row samples.

    Steps that only decode are replayed from `graphs` where there are some.
    """

    lag = 0

    def __init__(
        self,
        model: PreTrainedModel,
        attention: StepAttention,
        sampler: Sampler,
        block_size: int,
        *,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.block_size = block_size
        self.graphs = graphs
        self._tables = BlockTables()

    @torch.inference_mode()
    def start(self, step: SchedulerOutput) -> Ready:
        """Compute a step.

        What the model says of prompt tokens goes straight to their requests: nothing is decided by it. Raises
        OutOfMemory.
        """
        if not step.chunks:
            self._tables.forget()
            return Ready([])
        try:
            return Ready(self._compute(step))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Only here is the error gone, and with it the frames that held the step's tensors.
        release_freed_memory(self.model.device)
        self._tables.forget()
        raise OutOfMemory

    def _compute(self, step: SchedulerOutput) -> list[Outcome]:
        batch = make_batch(step, self._tables, self.block_size, self.model.device)
        self.attention.copy(batch.copies)
        logits = self._forward(batch)
        self._score(logits[batch.num_sampled :], batch.scored)
        logits = logits[: batch.num_sampled]
        if len(batch.draws) > len(logits):  # several samples of a row begin from one row of logits
            logits = logits[batch.draws]
        return self.sampler(logits, step.sampled_requests)

    def _forward(self, batch: Batch) -> Tensor:
        """[S + P, vocab] logits, which the next step may overwrite."""
        if self.graphs is not None and self.graphs.can_record and batch.is_decode:
            return self.graphs.run(batch.input_ids, batch.position_ids, batch.attention)
        self.attention.begin(batch.attention)
        output = self.model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            logits_to_keep=batch.logits_at,
        )
        return output.logits[0]  # type: ignore[no-any-return]

    def _score(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> None:
        """`logits` [scored places, vocab] -> the prompt logprobs of the chunks' requests."""
        start = 0
        for chunk in chunks:
            request, places = chunk.request, chunk.scored
            next_tokens = request.token_ids(places.start + 1, places.stop + 1)
            num_top = [request.params.prompt_logprobs or 0] * len(places)
            request.prompt_logprobs += self.sampler.score(logits[start : start + len(places)], next_tokens, num_top)
            start += len(places)
