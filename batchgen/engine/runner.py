"""ModelRunner: a scheduler's decision to token ids, through the model. The only part of the engine that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.engine.batch import Batch, BlockTables, make_batch
from batchgen.engine.engine import CompletedStep, InFlight
from batchgen.engine.request import Outcome, Request
from batchgen.engine.sampler import LogprobsTensors, Sampler, SamplerOutput
from batchgen.engine.step import OutOfMemory, ScheduledChunk, SchedulerOutput
from batchgen.models.attention import StepAttention
from batchgen.models.cuda_graphs import DecodeGraphs
from batchgen.models.device import is_out_of_memory, release_freed_memory
from batchgen.models.transfer import HostCopies


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device was given, and its results on their way to the host."""

    sampled: SamplerOutput
    scores: Sequence[tuple[Request, LogprobsTensors]]
    copies: HostCopies

    def outcomes(self) -> list[Outcome]:
        """See `engine.InFlight`. What the model says of prompt tokens goes to their requests: it decides nothing."""
        self.copies.wait()
        for request, measured in self.scores:
            request.prompt_logprobs += measured.read()
        return self.sampled.outcomes()


class ModelRunner:
    """One flattened forward a step: prefill chunks and decodes together, logits only where a row samples.

    Nothing that the device computes is read while a step begins: tokens that the step before is still to sample are
    taken where they will be. Steps that only decode are replayed from `graphs` where there are some.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        attention: StepAttention,
        sampler: Sampler,
        block_size: int,
        *,
        lag: int = 0,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.block_size = block_size
        self.lag = lag
        self.graphs = graphs
        self._tables = BlockTables()
        # Of the last step that began: who takes a token, and the tokens, on the device.
        self._sampled: Sequence[Request] = ()
        self._tokens = torch.empty(0, dtype=torch.int64)

    @torch.inference_mode()
    def start(self, step: SchedulerOutput) -> InFlight:
        """See `engine.Runner`. Raises OutOfMemory."""
        if not step.chunks:
            return CompletedStep([])
        try:
            return self._launch(step)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Only here is the error gone, and with it the frames that held the step's tensors.
        release_freed_memory(self.model.device)
        raise OutOfMemory

    def _launch(self, step: SchedulerOutput) -> LaunchedStep:
        device = self.model.device
        batch = make_batch(step, self._tables, self.block_size, device, self._sampled)
        inputs = batch.inputs
        if len(inputs.pending_at):
            inputs.input_ids[inputs.pending_at] = self._tokens[inputs.pending_from]
        self.attention.copy(inputs.copies)
        logits = self._forward(batch)
        scores = list(self._score(logits[batch.num_sampled :], batch.scored))
        logits = logits[: batch.num_sampled]
        if len(inputs.draws) > len(logits):  # several samples of a row begin from one row of logits
            logits = logits[inputs.draws]
        sampled = self.sampler.sample(logits, step.sampled_requests, batch.sampling)
        self._sampled, self._tokens = sampled.requests, sampled.sampled.tokens
        copies = HostCopies.begin(device)
        scored = [(request, measured.on_host(copies.of)) for request, measured in scores]
        return LaunchedStep(sampled.on_host(copies.of), scored, copies)

    def _forward(self, batch: Batch) -> Tensor:
        """[S + P, vocab] logits, which the next step may overwrite."""
        inputs = batch.inputs
        if self.graphs is not None and self.graphs.can_record and batch.is_decode:
            return self.graphs.run(inputs.input_ids, inputs.position_ids, batch.attention)
        self.attention.begin(batch.attention)
        output = self.model(
            input_ids=inputs.input_ids[None],
            position_ids=inputs.position_ids[None],
            use_cache=False,
            logits_to_keep=inputs.logits_at,
        )
        return output.logits[0]  # type: ignore[no-any-return]

    def _score(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> Iterator[tuple[Request, LogprobsTensors]]:
        """`logits` [scored places, vocab] -> what the model says of the prompt tokens behind the chunks' places."""
        start = 0
        for chunk in chunks:
            request, positions = chunk.request, chunk.scored
            next_tokens = request.token_ids(positions.start + 1, positions.stop + 1)
            num_top = [request.params.prompt_logprobs or 0] * len(positions)
            yield request, self.sampler.score(logits[start : start + len(positions)], next_tokens, num_top)
            start += len(positions)
