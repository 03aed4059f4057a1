"""DecodeGraphs: the forward of decode steps as CUDA graphs, one for each of a few numbers of rows.

A decode step of a small model is a few hundred kernel launches, which take the host longer than the device. To replay
them as one graph, every tensor must stay at its address: a step is written into static tensors, padded with tokens of
no row up to a recorded size, and its logits are static too. Knows the model's forward; knows no requests, no sampling.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.models.attention import StepAttention
from batchgen.models.backends import AttentionStep, PreparedForReplay, ReplayBackend
from batchgen.models.transfer import Recorder

log = logging.getLogger("batchgen")


def graph_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows for which a forward is recorded, up to `max_rows` itself.

    Up to a few hundred rows a step takes as long as reading the weights, so a few padding rows cost nothing, while
    every size costs a recording (about one eager forward) and the memory of its graph. Hence the growing distances.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, max_rows, 16)]
    return [size for size in sizes if size < max_rows] + [max_rows]


@dataclass(frozen=True, slots=True)
class _Recorded:
    prepared: PreparedForReplay
    replay: Callable[[], object]


class DecodeGraphs:
    """Decode steps of up to `max_rows` rows, each with one query and up to `max_blocks` blocks."""

    def __init__(self, model: PreTrainedModel, attention: StepAttention, max_rows: int, max_blocks: int) -> None:
        assert isinstance(attention.backend, ReplayBackend), f"{attention.backend} cannot be replayed"
        self._model, self._attention, self._backend = model, attention, attention.backend
        self._sizes = graph_sizes(max_rows)
        self._input_ids, self._positions = torch.zeros(2, 1, max_rows, dtype=torch.int64, device=model.device)
        self._slots = torch.full((max_rows,), -1, dtype=torch.int64, device=model.device)
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int64, device=model.device)
        self._logits: Tensor | None = None  # [max_rows, vocab] float32, from the first forward on
        self._recorder = Recorder(model.device)
        self._recorded: dict[int, _Recorded] = {}
        self.can_record = True
        self.seconds = 0.0  # spent recording

    def run(self, input_ids: Tensor, position_ids: Tensor, step: AttentionStep) -> Tensor:
        """Return the next tokens' logits [rows, vocab] float32, overwritten by the next call; ids and positions [rows].

        A size is recorded after it has run for the first time, so sizes that a job never has cost nothing.
        """
        size = self._sizes[bisect_left(self._sizes, step.num_rows)]
        padded = self._write(input_ids, position_ids, step, size)
        if size in self._recorded:
            recorded = self._recorded[size]
            recorded.prepared.update(padded)
            self._attention.begin_prepared(recorded.prepared)
            recorded.replay()
        else:
            self._run_first(padded, size)
        assert self._logits is not None
        return self._logits[: step.num_rows]

    def _write(self, input_ids: Tensor, position_ids: Tensor, step: AttentionStep, size: int) -> AttentionStep:
        """Return the step in the static tensors. Of what an earlier step left in the padding only the slots matter."""
        rows, num_blocks = step.block_tables.shape
        self._input_ids[0, :rows] = input_ids
        self._positions[0, :rows] = position_ids
        self._slots[:rows] = step.slot_mapping
        self._slots[rows:size] = -1
        self._tables[:rows, :num_blocks] = step.block_tables
        return replace(step, slot_mapping=self._slots[:size], block_tables=self._tables[:size])

    def _run_first(self, step: AttentionStep, size: int) -> None:
        prepared = self._backend.prepare_for_replay(step)
        self._attention.begin_prepared(prepared)

        def forward() -> None:
            output = self._model(
                input_ids=self._input_ids[:, :size], position_ids=self._positions[:, :size], use_cache=False
            )
            if self._logits is None:
                shape = (self._sizes[-1], output.logits.shape[-1])
                self._logits = torch.empty(shape, dtype=torch.float32, device=output.logits.device)
            self._logits[:size] = output.logits[0]

        forward()
        start = time.perf_counter()
        try:
            self._recorded[size] = _Recorded(prepared, self._recorder.record(forward))
        except RuntimeError as error:
            self.can_record = False
            log.warning(
                "decode steps run without CUDA graphs, slower by the time of kernel launches: the model's forward "
                "cannot be captured (%s)",
                str(error).splitlines()[0],
            )
        self.seconds += time.perf_counter() - start
