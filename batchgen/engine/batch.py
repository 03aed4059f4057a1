"""Batch: the device inputs of one forward. Turns a scheduler's decision into flat tensors; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchgen.engine.step import Repeat, ScheduledChunk
from batchgen.models.attention import AttentionStep, BlockGroup
from batchgen.plan.groups import prefix_groups


@dataclass(frozen=True, slots=True)
class Batch:
    """The T tokens of a step, one chunk after the other, as one sequence for the model."""

    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    logits_at: Tensor  # [S + P] places in T whose logits are wanted: S give tokens, then P that score the prompt's own
    draws: Tensor  # [D] which of the S each token is drawn from: several of them for the samples of one prompt
    num_sampled: int  # S
    scored: list[ScheduledChunk]  # those with prompt tokens to score, P in all
    attention: AttentionStep


def make_batch(
    chunks: Sequence[ScheduledChunk], block_size: int, device: torch.device, repeats: Sequence[Repeat] = ()
) -> Batch:
    """The tensors of these chunks on `device`. `chunks` is not empty."""
    sizes = np.array([chunk.num_tokens for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    ends = np.cumsum(sizes)
    rows = np.repeat(np.arange(len(chunks)), sizes)
    positions = np.arange(ends[-1]) - np.repeat(ends - sizes - starts, sizes)
    tables = _block_tables(chunks)
    slots = tables[rows, positions // block_size] * block_size + positions % block_size
    repeated, repeat_slots = _repeated(chunks, repeats, ends - sizes - starts, block_size)
    token_ids = [token for chunk in chunks for token in chunk.request.token_ids(chunk.start, chunk.stop)]
    sampled = [row for row, chunk in enumerate(chunks) if chunk.samples]
    scored = [row for row, chunk in enumerate(chunks) if chunk.scored]
    # position in the row -> place in the step
    places = [np.array(chunks[row].scored) - int(starts[row]) + int(ends[row] - sizes[row]) for row in scored]

    def put(array: npt.ArrayLike) -> Tensor:
        return torch.from_numpy(np.asarray(array, np.int64)).to(device)

    return Batch(
        input_ids=put(token_ids)[None],
        position_ids=put(positions)[None],
        logits_at=put(np.concatenate([ends[sampled] - 1, *places])),
        draws=put(np.repeat(np.arange(len(sampled)), [len(chunks[row].samples) for row in sampled])),
        num_sampled=len(sampled),
        scored=[chunks[row] for row in scored],
        attention=AttentionStep(
            slot_mapping=put(np.concatenate([slots, repeat_slots])),
            repeated=put(repeated) if len(repeated) else None,
            block_tables=put(tables),
            query_starts=[0, *ends.tolist()],
            seq_lens=(starts + sizes).tolist(),
            groups=_groups(tables, starts // block_size),
            block_size=block_size,
        ),
    )


def _repeated(
    chunks: Sequence[ScheduledChunk], repeats: Sequence[Repeat], shifts: npt.NDArray[np.int64], block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places in the step of the tokens with a second slot, and those slots. `shifts`: position -> place, one a row."""
    shift_of = {id(chunk.request): shift for chunk, shift in zip(chunks, shifts.tolist(), strict=True)}
    positions = [np.arange(repeat.start, repeat.stop) for repeat in repeats]
    places = [each + shift_of[id(repeat.request)] for each, repeat in zip(positions, repeats, strict=True)]
    slots = [repeat.target * block_size + each % block_size for each, repeat in zip(positions, repeats, strict=True)]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *places]), np.concatenate([none, *slots])


def _block_tables(chunks: Sequence[ScheduledChunk]) -> npt.NDArray[np.int64]:
    """[rows, longest table], padded with 0."""
    tables = np.zeros((len(chunks), max(len(chunk.request.block_table) for chunk in chunks)), np.int64)
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.request.block_table)] = chunk.request.block_table
    return tables


def _groups(tables: npt.NDArray[np.int64], num_computed_blocks: npt.NDArray[np.int64]) -> list[BlockGroup]:
    """Neighbours that begin with the same blocks, as far as those lie before the queries of all of them."""
    equal = np.cumprod(tables[:-1] == tables[1:], axis=1).sum(axis=1)
    shared = np.minimum(equal, np.minimum(num_computed_blocks[:-1], num_computed_blocks[1:]))
    return [BlockGroup(*group) for group in prefix_groups(shared)]
