"""Batch: the device inputs of one forward. Turns the scheduler's decision into flat tensors; decides nothing.

The tokens of a step are concatenated chunk by chunk; a token index is an index into that sequence, a position is one in
the request. BlockTables keeps the block tables from step to step, since few entries change; SamplingColumns has the
sampling parameters of the step's rows as the kernels take them.
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
    """The T tokens of a step, one chunk after the other, and indices into them."""

    input_ids: Tensor  # [T]
    position_ids: Tensor  # [T]
    pending_indices: Tensor  # [K] token indices of the pending tokens, which the step before samples
    pending_sources: Tensor  # [K] index of each of them among the tokens sampled by that step
    logits_indices: Tensor  # [S + P] token indices that need logits: S to sample from, then P to score prompt tokens
    sampled_from: Tensor  # [D] row of the S that each token is sampled from; all samples of a prompt have the same row
    copies: Tensor  # [2, C] block ids: sources and targets


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of a step. All tensors are views of one, which is copied to the device at once."""

    inputs: StepInputs
    sampling: SamplingRows | None  # one entry per sampled token; None: all are greedy
    num_sampled: int  # S
    scored: list[ScheduledChunk]  # the chunks with prompt tokens to score, P tokens in total
    attention: AttentionStep

    @property
    def is_decode(self) -> bool:
        """Whether every row has one token, which is sampled from, and the step computes nothing else."""
        is_sampled = self.num_sampled == len(self.inputs.input_ids)
        return is_sampled and not self.scored and self.attention.repeated is None


class _ChunkLayout(NamedTuple):
    """Where the chunks of a step are in its token sequence and in their requests. One entry per chunk, a row."""

    num_tokens: Ints
    starts: Ints  # position of the first token in its request
    ends: Ints  # token index behind the last token

    @classmethod
    def from_chunks(cls, chunks: Sequence[ScheduledChunk]) -> _ChunkLayout:
        num_tokens = np.array([chunk.num_tokens for chunk in chunks])
        return cls(num_tokens, np.array([chunk.start for chunk in chunks]), np.cumsum(num_tokens))

    @property
    def index_offsets(self) -> Ints:
        """Difference between the token index of a token and its position in the request."""
        return self.ends - self.num_tokens - self.starts

    def token_rows(self) -> Ints:
        """Return the row of each token, [T]."""
        return np.repeat(np.arange(len(self.num_tokens)), self.num_tokens)

    def token_positions(self) -> Ints:
        """Return the position of each token in its request, [T]."""
        return np.arange(self.ends[-1]) - np.repeat(self.index_offsets, self.num_tokens)


def make_batch(
    step: SchedulerOutput,
    tables: BlockTables,
    block_size: int,
    device: torch.device,
    sampled_before: Sequence[Request] = (),
) -> Batch:
    """Return the tensors of a step on `device`; the step has at least one chunk.

    `sampled_before`: the requests that sample a token in the step before, in the order of their tokens.
    """
    chunks, layout = step.chunks, _ChunkLayout.from_chunks(step.chunks)
    rows, positions = layout.token_rows(), layout.token_positions()
    block_tables = tables.update([chunk.request.block_table for chunk in chunks])
    slots = block_tables[rows, positions // block_size] * block_size + positions % block_size
    repeated, repeat_slots = _repeated(chunks, step.repeats, layout.index_offsets, block_size)
    sampled = [row for row, chunk in enumerate(chunks) if chunk.samples]
    scored = [row for row, chunk in enumerate(chunks) if chunk.scored]
    sampling = SamplingColumns.from_requests(step.sampled_requests)
    token_ids = np.array([token for chunk in chunks for token in chunk.request.token_ids(chunk.start, chunk.stop)])
    pending = np.flatnonzero(token_ids == PENDING_TOKEN)
    inputs = [
        token_ids,
        positions,
        pending,
        _indices_among([chunks[row].request for row in rows[pending].tolist()], sampled_before),
        np.concatenate(
            [layout.ends[sampled] - 1, *(np.array(chunks[row].scored) + layout.index_offsets[row] for row in scored)]
        ),
        np.repeat(np.arange(len(sampled)), [len(chunks[row].samples) for row in sampled]),
        np.array(step.copies, np.int64).reshape(-1, 2).T,
    ]
    others = [np.concatenate([slots, repeat_slots]), repeated, block_tables, sampling.floats, sampling.integers]
    *on_device, slot_mapping, repeated_tokens, device_tables, floats, integers = to_device([*inputs, *others], device)
    return Batch(
        StepInputs(*on_device),
        sampling.to_rows(floats, integers),
        num_sampled=len(sampled),
        scored=[chunks[row] for row in scored],
        attention=AttentionStep(
            slot_mapping=slot_mapping,
            block_tables=device_tables,
            repeated=repeated_tokens if len(repeated) else None,
            query_starts=[0, *layout.ends.tolist()],
            seq_lens=(layout.starts + layout.num_tokens).tolist(),
            groups=_groups(block_tables, layout.starts // block_size),
            block_size=block_size,
        ),
    )


def _indices_among(requests: Sequence[Request], among: Sequence[Request]) -> Ints:
    """Return the index of each of `requests` in `among`."""
    if not requests:
        return np.empty(0, np.int64)
    request_to_index = {request: index for index, request in enumerate(among)}
    return np.array([request_to_index[request] for request in requests])


def _repeated(
    chunks: Sequence[ScheduledChunk], repeats: Sequence[Repeat], index_offsets: Ints, block_size: int
) -> tuple[Ints, Ints]:
    """Return the token indices of the tokens that are written to a second slot, and those slots.

    `index_offsets`: of each row, see `_ChunkLayout`.
    """
    request_to_offset = {chunk.request: offset for chunk, offset in zip(chunks, index_offsets.tolist(), strict=True)}
    positions = [np.arange(repeat.start, repeat.stop) for repeat in repeats]
    indices = [each + request_to_offset[repeat.request] for each, repeat in zip(positions, repeats, strict=True)]
    slots = [repeat.target * block_size + each % block_size for each, repeat in zip(positions, repeats, strict=True)]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *indices]), np.concatenate([none, *slots])


def _groups(tables: Ints, num_computed_blocks: Ints) -> list[BlockGroup]:
    """Return groups of adjacent rows that begin with the same blocks, counting only blocks before all their queries."""
    differs = tables[:-1] != tables[1:]
    equal = np.where(differs.any(1), differs.argmax(1), tables.shape[1])
    shared = np.minimum(equal, np.minimum(num_computed_blocks[:-1], num_computed_blocks[1:]))
    return [BlockGroup(*group) for group in prefix_groups(shared)]


class BlockTables:
    """The block tables of a step as one array; only rows that differ from the step before are written.

    The block table of a request is the same list object as long as the request keeps its blocks. That list only grows,
    except that copy-on-write may replace its last entry (`request_blocks.py`). So all entries but the last of a list
    that was in the step before are known; a new list is written whole.
    """

    def __init__(self) -> None:
        self._lists: list[list[int]] = []  # a reference to each, so that no new list can have the id of one of them
        self._tables = np.zeros((1, 1), np.int64)
        self._lengths = np.zeros(1, np.int64)

    def update(self, lists: list[list[int]]) -> Ints:
        """Return the tables of a step, [rows, longest table], padded with 0; the next call may change this view."""
        self._reorder_rows(lists)
        lengths = np.array([len(table) for table in lists])
        last = np.array([table[-1] for table in lists])
        width = int(lengths.max())
        if width > self._tables.shape[1]:
            self._tables = np.pad(self._tables, ((0, 0), (0, 2 * width - self._tables.shape[1])))
        is_unchanged = (lengths == self._lengths) & (last == self._tables[np.arange(len(lists)), lengths - 1])
        for row in np.flatnonzero(~is_unchanged).tolist():
            first = max(self._lengths[row] - 1, 0)
            self._tables[row, first : lengths[row]] = lists[row][first:]
        self._lengths = lengths
        return self._tables[:, :width]

    def _reorder_rows(self, lists: list[list[int]]) -> None:
        """Bring the rows of the step before into the order of `lists`, with empty rows for new lists."""
        before, now = ([id(table) for table in each] for each in (self._lists, lists))
        self._lists = lists
        if before == now:
            return
        id_to_row = {table_id: row for row, table_id in enumerate(before)}
        old_rows = np.array([id_to_row.get(table_id, -1) for table_id in now])
        is_new = old_rows < 0
        self._tables, self._lengths = self._tables[old_rows], self._lengths[old_rows]
        self._tables[is_new], self._lengths[is_new] = 0, 0


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """The sampling parameters of R rows, as the arrays that are copied to the device."""

    floats: npt.NDArray[np.float64]  # [3, R] temperature, top_p, min_p
    integers: Ints  # [4, R] top_k, rng key, number of output tokens, sample index
    is_filtered: bool  # whether any row uses top_k or top_p

    @classmethod
    def from_requests(cls, requests: Sequence[Request]) -> SamplingColumns:
        """Return the columns of these requests; empty ones, R = 0, if all requests are greedy."""
        if all(request.params.is_greedy for request in requests):
            return cls(np.empty((3, 0)), np.empty((4, 0), np.int64), False)
        params = [request.params for request in requests]
        floats = [(0.0 if each.is_greedy else each.temperature, each.top_p, each.min_p) for each in params]
        # Unsigned, because an rng key has 64 bits.
        integers = np.array(
            [(r.params.top_k, r.rng_key, r.num_output_tokens, r.sample_index) for r in requests], np.uint64
        )
        is_filtered = any(each.top_k or each.top_p < 1 for each in params)
        return cls(np.array(floats).T, integers.view(np.int64).T, is_filtered)

    def to_rows(self, floats: Tensor, integers: Tensor) -> SamplingRows | None:
        """Return the columns as the kernels take them, from their copies on the device; None if all rows are greedy."""
        if not integers.numel():
            return None
        temperatures, top_p, min_p = floats.float()
        top_k, keys, positions, samples = integers
        return SamplingRows(temperatures, top_p, min_p, top_k, keys, positions, samples, self.is_filtered)
