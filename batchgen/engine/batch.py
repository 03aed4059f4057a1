"""Batch: the device inputs of one forward. Turns a scheduler's decision into flat tensors; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.block_tables import BlockTables
from batchgen.engine.request import PENDING_TOKEN, Request
from batchgen.engine.sampling_columns import SamplingColumns
from batchgen.engine.step import Repeat, ScheduledChunk, SchedulerOutput
from batchgen.models.attention import AttentionStep, BlockGroup
from batchgen.models.device_queue import to_device
from batchgen.models.sampling import SamplingRows
from batchgen.plan.groups import prefix_groups

Ints = npt.NDArray[np.int64]


class StepInputs(NamedTuple):
    """The T tokens of a step, one chunk after the other. Places are among them."""

    input_ids: Tensor  # [T]
    position_ids: Tensor  # [T]
    pending_at: Tensor  # [K] places in T of tokens that the step before samples
    pending_from: Tensor  # [K] which of its tokens they are
    logits_at: Tensor  # [S + P] places in T whose logits are wanted: S give tokens, then P that score the prompt's own
    draws: Tensor  # [D] which of the S each token is drawn from: several of them for the samples of one prompt
    copies: Tensor  # [2, C] blocks: from where and to where


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step needs. All of its tensors are views of one, brought to the device by one copy."""

    inputs: StepInputs
    sampling: SamplingRows | None  # of those who take a token; None: all take the best
    num_sampled: int  # S
    scored: list[ScheduledChunk]  # those with prompt tokens to score, P in all
    attention: AttentionStep

    @property
    def is_decode(self) -> bool:
        """Whether every row has one token, whose logits give its next one, and nothing else is wanted of it."""
        is_sampled = self.num_sampled == len(self.inputs.input_ids)
        return is_sampled and not self.scored and self.attention.repeated is None


class _Layout(NamedTuple):
    """Where the chunks of a step lie, one entry a chunk."""

    sizes: Ints
    starts: Ints  # position of its first token in its row
    ends: Ints  # place behind its last token in the step

    @classmethod
    def of(cls, chunks: Sequence[ScheduledChunk]) -> _Layout:
        sizes = np.array([chunk.num_tokens for chunk in chunks])
        return cls(sizes, np.array([chunk.start for chunk in chunks]), np.cumsum(sizes))

    @property
    def shifts(self) -> Ints:
        """From a position in the row to the place in the step."""
        return self.ends - self.sizes - self.starts

    def rows(self) -> Ints:
        """Of each token."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def positions(self) -> Ints:
        """Of each token in its row."""
        return np.arange(self.ends[-1]) - np.repeat(self.shifts, self.sizes)


def make_batch(
    step: SchedulerOutput,
    tables: BlockTables,
    block_size: int,
    device: torch.device,
    sampled_before: Sequence[Request] = (),
) -> Batch:
    """The tensors of a step, which has chunks, on `device`. `sampled_before`: who takes a token in the step before."""
    chunks, layout = step.chunks, _Layout.of(step.chunks)
    rows, positions = layout.rows(), layout.positions()
    block_tables = tables.of([chunk.request.block_table for chunk in chunks])
    slots = block_tables[rows, positions // block_size] * block_size + positions % block_size
    repeated, repeat_slots = _repeated(chunks, step.repeats, layout.shifts, block_size)
    sampled = [row for row, chunk in enumerate(chunks) if chunk.samples]
    scored = [row for row, chunk in enumerate(chunks) if chunk.scored]
    sampling = SamplingColumns.of(step.sampled_requests)
    token_ids = np.array([token for chunk in chunks for token in chunk.request.token_ids(chunk.start, chunk.stop)])
    pending = np.flatnonzero(token_ids == PENDING_TOKEN)
    inputs = [
        token_ids,
        positions,
        pending,
        _places([chunks[row].request for row in rows[pending].tolist()], sampled_before),
        np.concatenate(
            [layout.ends[sampled] - 1, *(np.array(chunks[row].scored) + layout.shifts[row] for row in scored)]
        ),
        np.repeat(np.arange(len(sampled)), [len(chunks[row].samples) for row in sampled]),
        np.array(step.copies, np.int64).reshape(-1, 2).T,
    ]
    others = [np.concatenate([slots, repeat_slots]), repeated, block_tables, sampling.shares, sampling.counts]
    *on_device, slot_mapping, repeated_tokens, device_tables, shares, counts = to_device([*inputs, *others], device)
    return Batch(
        StepInputs(*on_device),
        sampling.on_device(shares, counts),
        num_sampled=len(sampled),
        scored=[chunks[row] for row in scored],
        attention=AttentionStep(
            slot_mapping=slot_mapping,
            block_tables=device_tables,
            repeated=repeated_tokens if len(repeated) else None,
            query_starts=[0, *layout.ends.tolist()],
            seq_lens=(layout.starts + layout.sizes).tolist(),
            groups=_groups(block_tables, layout.starts // block_size),
            block_size=block_size,
        ),
    )


def _places(requests: Sequence[Request], among: Sequence[Request]) -> Ints:
    """Where each of `requests` is among others."""
    if not requests:
        return np.empty(0, np.int64)
    places = {request: place for place, request in enumerate(among)}
    return np.array([places[request] for request in requests])


def _repeated(
    chunks: Sequence[ScheduledChunk], repeats: Sequence[Repeat], shifts: Ints, block_size: int
) -> tuple[Ints, Ints]:
    """Places in the step of the tokens with a second slot, and those slots. `shifts`: position -> place, one a row."""
    shift_of = {id(chunk.request): shift for chunk, shift in zip(chunks, shifts.tolist(), strict=True)}
    positions = [np.arange(repeat.start, repeat.stop) for repeat in repeats]
    places = [each + shift_of[id(repeat.request)] for each, repeat in zip(positions, repeats, strict=True)]
    slots = [repeat.target * block_size + each % block_size for each, repeat in zip(positions, repeats, strict=True)]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *places]), np.concatenate([none, *slots])


def _groups(tables: Ints, num_computed_blocks: Ints) -> list[BlockGroup]:
    """Neighbours that begin with the same blocks, as far as those lie before the queries of all of them."""
    differs = tables[:-1] != tables[1:]
    equal = np.where(differs.any(1), differs.argmax(1), tables.shape[1])
    shared = np.minimum(equal, np.minimum(num_computed_blocks[:-1], num_computed_blocks[1:]))
    return [BlockGroup(*group) for group in prefix_groups(shared)]
