"""ModelRunner: runs the model over a scheduled step and samples. The only part of the engine that calls the model."""

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
    """A step that was launched on the device, and its results while they are copied to the host."""

    output: SamplerOutput
    prompt_logprobs: Sequence[tuple[Request, LogprobsTensors]]
    copies: HostCopies

    def outcomes(self) -> list[Outcome]:
        """See `engine.InFlight`. Prompt log-probabilities are stored in their requests, as nothing depends on them."""
        self.copies.wait()
        for request, logprobs in self.prompt_logprobs:
            request.prompt_logprobs += logprobs.read()
        return self.output.outcomes()


class ModelRunner:
    """Runs one flattened forward per step: prefill chunks and decodes together, logits only where they are needed.

    Starting a step reads nothing back from the device: pending tokens are taken from the tensor in which the step
    before will store them. With `graphs`, steps that only decode are replayed from CUDA graphs.
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
        # Of the step started last: the requests that sample a token, and their tokens, on the device.
        self._sampled_requests: Sequence[Request] = ()
        self._sampled_tokens = torch.empty(0, dtype=torch.int64)

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
        # Only outside the handler is the exception freed, and with it the frames that hold the step's tensors.
        release_freed_memory(self.model.device)
        raise OutOfMemory

    def _launch(self, step: SchedulerOutput) -> LaunchedStep:
        device = self.model.device
        batch = make_batch(step, self._tables, self.block_size, device, self._sampled_requests)
        inputs = batch.inputs
        if len(inputs.pending_indices):
            inputs.input_ids[inputs.pending_indices] = self._sampled_tokens[inputs.pending_sources]
        self.attention.copy(inputs.copies)
        logits = self._forward(batch)
        prompt_logprobs = list(self._score_prompts(logits[batch.num_sampled :], batch.scored))
        logits = logits[: batch.num_sampled]
        if len(inputs.sampled_from) > len(logits):  # several samples of a prompt start from one row of logits
            logits = logits[inputs.sampled_from]
        output = self.sampler.sample(logits, step.sampled_requests, batch.sampling)
        self._sampled_requests, self._sampled_tokens = output.requests, output.sampled.tokens
        copies = HostCopies.begin(device)
        on_host = [(request, logprobs.on_host(copies.of)) for request, logprobs in prompt_logprobs]
        return LaunchedStep(output.on_host(copies.of), on_host, copies)

    def _forward(self, batch: Batch) -> Tensor:
        """Return the logits, [S + P, vocab]; the next step may overwrite them."""
        inputs = batch.inputs
        if self.graphs is not None and self.graphs.can_record and batch.is_decode:
            return self.graphs.run(inputs.input_ids, inputs.position_ids, batch.attention)
        self.attention.begin(batch.attention)
        output = self.model(
            input_ids=inputs.input_ids[None],
            position_ids=inputs.position_ids[None],
            use_cache=False,
            logits_to_keep=inputs.logits_indices,
        )
        return output.logits[0]  # type: ignore[no-any-return]

    def _score_prompts(
        self, logits: Tensor, chunks: Sequence[ScheduledChunk]
    ) -> Iterator[tuple[Request, LogprobsTensors]]:
        """Yield the log-probabilities of the prompt tokens that `logits` [P, vocab] predict, chunk by chunk."""
        start = 0
        for chunk in chunks:
            request, positions = chunk.request, chunk.scored
            next_tokens = request.token_ids(positions.start + 1, positions.stop + 1)
            num_top = [request.params.prompt_logprobs or 0] * len(positions)
            yield request, self.sampler.score(logits[start : start + len(positions)], next_tokens, num_top)
            start += len(positions)
