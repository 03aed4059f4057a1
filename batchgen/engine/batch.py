"""Batch: the device inputs of one forward. Turns a scheduler's decision into flat tensors; decides nothing.

BlockTables keeps the block tables from step to step, since little of them changes; SamplingColumns are the sampling
values of the step's rows as the kernels take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.request import PENDING_TOKEN, Request
from batchgen.engine.step import Repeat, ScheduledChunk, SchedulerOutput
from batchgen.models.backends import AttentionStep, BlockGroup, SamplingRows
from batchgen.models.transfer import to_device
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
        _indices_among([chunks[row].request for row in rows[pending].tolist()], sampled_before),
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


def _indices_among(requests: Sequence[Request], among: Sequence[Request]) -> Ints:
    """Where each of `requests` is among others."""
    if not requests:
        return np.empty(0, np.int64)
    indices = {request: place for place, request in enumerate(among)}
    return np.array([indices[request] for request in requests])


def _repeated(
    chunks: Sequence[ScheduledChunk], repeats: Sequence[Repeat], shifts: Ints, block_size: int
) -> tuple[Ints, Ints]:
    """Places in the step of the tokens with a second slot, and those slots. `shifts`: position -> place, one a row."""
    shift_of = {id(chunk.request): shift for chunk, shift in zip(chunks, shifts.tolist(), strict=True)}
    positions = [np.arange(repeat.start, repeat.stop) for repeat in repeats]
    indices = [each + shift_of[id(repeat.request)] for each, repeat in zip(positions, repeats, strict=True)]
    slots = [repeat.target * block_size + each % block_size for each, repeat in zip(positions, repeats, strict=True)]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *indices]), np.concatenate([none, *slots])


def _groups(tables: Ints, num_computed_blocks: Ints) -> list[BlockGroup]:
    """Neighbours that begin with the same blocks, as far as those lie before the queries of all of them."""
    differs = tables[:-1] != tables[1:]
    equal = np.where(differs.any(1), differs.argmax(1), tables.shape[1])
    shared = np.minimum(equal, np.minimum(num_computed_blocks[:-1], num_computed_blocks[1:]))
    return [BlockGroup(*group) for group in prefix_groups(shared)]


Array = npt.NDArray[np.int64]


class BlockTables:
    """Takes over from the step before what its rows have; nothing is done row by row but what is new.

    A request's table is the same list as long as it keeps its blocks; that list only grows, but copy-on-write may
    replace its last entry (`request_blocks.py`). So of a list that was there in the step before, all entries before
    the last one are known; another list is written whole.
    """

    def __init__(self) -> None:
        self._lists: list[list[int]] = []  # kept, so that no other list gets the id of one of them
        self._tables = np.zeros((1, 1), np.int64)
        self._lengths = np.zeros(1, np.int64)

    def of(self, lists: list[list[int]]) -> Array:
        """[rows, longest table], padded with 0; a view that the next call may change."""
        self._move(lists)
        lengths = np.array([len(table) for table in lists])
        last = np.array([table[-1] for table in lists])
        width = int(lengths.max())
        if width > self._tables.shape[1]:
            self._tables = np.pad(self._tables, ((0, 0), (0, 2 * width - self._tables.shape[1])))
        is_old = (lengths == self._lengths) & (last == self._tables[np.arange(len(lists)), lengths - 1])
        for row in np.flatnonzero(~is_old).tolist():
            first = max(self._lengths[row] - 1, 0)
            self._tables[row, first : lengths[row]] = lists[row][first:]
        self._lengths = lengths
        return self._tables[:, :width]

    def _move(self, lists: list[list[int]]) -> None:
        """Rows to their new places; empty ones for those that come."""
        before, now = ([id(table) for table in each] for each in (self._lists, lists))
        self._lists = lists
        if before == now:
            return
        known = {table: row for row, table in enumerate(before)}
        indices = np.array([known.get(table, -1) for table in now])
        comes = indices < 0
        self._tables, self._lengths = self._tables[indices], self._lengths[indices]
        self._tables[comes], self._lengths[comes] = 0, 0


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """One entry a row in each column."""

    shares: npt.NDArray[np.float64]  # [3, R] temperature, top_p, min_p
    counts: npt.NDArray[np.int64]  # [4, R] top_k, draw key, position, sample index
    is_filtered: bool

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingColumns:
        """Columns of no rows where all of them take the best."""
        if all(request.params.is_greedy for request in requests):
            return cls(np.empty((3, 0)), np.empty((4, 0), np.int64), False)
        params = [request.params for request in requests]
        shares = [(0.0 if each.is_greedy else each.temperature, each.top_p, each.min_p) for each in params]
        # Unsigned, for a draw key has 64 bits.
        counts = np.array(
            [(r.params.top_k, r.rng_key, r.num_output_tokens, r.sample_index) for r in requests], np.uint64
        )
        is_filtered = any(each.top_k or each.top_p < 1 for each in params)
        return cls(np.array(shares).T, counts.view(np.int64).T, is_filtered)

    def on_device(self, shares: Tensor, counts: Tensor) -> SamplingRows | None:
        """The same of their tensors; None where all rows take the best."""
        if not counts.numel():
            return None
        temperatures, top_p, min_p = shares.float()
        top_k, keys, positions, samples = counts
        return SamplingRows(temperatures, top_p, min_p, top_k, keys, positions, samples, self.is_filtered)
