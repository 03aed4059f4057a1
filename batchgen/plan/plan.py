"""Plan: the visiting order of a job and the limits of its run. Knows token ids; knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchgen.plan.limits import hit_ceiling, num_blocks_needed, tail_waste
from batchgen.plan.order import Order, lexicographic_order, seen_lengths, visiting_order
from batchgen.plan.token_store import Lengths, PackedTokens, Positions

BLOCK_SIZES = (8, 16, 32, 64, 128)  # the sizes that a plan and a report compare; the report has a column for each


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The order in which prompts run, and the limits that the run is compared with."""

    depth_first: Order  # all prompts in depth-first order, even if they are visited in input order
    order: Positions  # [visit index] position in the token store
    # [visit index] leading tokens shared with the next prompt; None if they are visited in input order.
    shared_with_next: Lengths | None
    seen: Lengths  # [visit index] leading tokens shared with any prompt visited before
    num_prompt_tokens: int
    num_unique_tokens: int  # nodes of the prefix tree of tokens: the least to compute, whatever the block size
    hit_ceiling: int  # prompt tokens found with the best order and an unlimited cache, at this block size
    ceilings: Mapping[int, int]  # block size -> hit ceiling, for BLOCK_SIZES
    tail_waste: Mapping[int, int]  # block size -> empty slots in last blocks, for BLOCK_SIZES
    num_blocks_needed: int  # upper bound on the blocks used or kept idle at once


def make_plan(
    tokens: PackedTokens,
    positions: Sequence[int] | Positions,
    max_tokens: npt.ArrayLike,
    *,
    block_size: int,
    max_num_seqs: int,
    by_prefix: bool,
    share: bool = True,
    num_samples: npt.ArrayLike = 1,
    scored: npt.ArrayLike = False,
) -> Plan:
    """Plan the prompts at `positions` of the store, which are ascending.

    `max_tokens[position]` is the longest output of a prompt. `by_prefix` False keeps the input order; `share` False
    means no prefix cache, so no hits. A prompt counts once, however many samples its row has (`num_samples[position]`).
    Prompts with `scored[position]` are computed whole, whatever is cached.
    """
    lexicographic = lexicographic_order(tokens, positions)
    lengths = tokens.lengths(lexicographic.positions)
    longest = np.asarray(max_tokens, np.int64)
    depth_first = visiting_order(lexicographic, tokens, longest, block_size)
    visited = depth_first.positions if by_prefix else np.asarray(positions, np.int64)
    seen = seen_lengths(lexicographic, visited)
    shared_with_next = depth_first.shared if by_prefix else None
    is_scored = np.broadcast_to(scored, len(tokens))
    findable = _findable(lexicographic, is_scored[lexicographic.positions]) if share else np.zeros_like(lengths)
    return Plan(
        depth_first=depth_first,
        order=visited,
        shared_with_next=shared_with_next,
        seen=seen,
        num_prompt_tokens=int(lengths.sum()),
        num_unique_tokens=int(lengths.sum() - lexicographic.shared.sum()),
        hit_ceiling=hit_ceiling(lengths, findable, block_size),
        ceilings={size: hit_ceiling(lengths, findable, size) for size in BLOCK_SIZES},
        tail_waste={size: tail_waste(lengths, longest[lexicographic.positions], size) for size in BLOCK_SIZES},
        num_blocks_needed=num_blocks_needed(
            tokens.lengths(visited),
            longest[visited],
            seen,
            shared_with_next,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            share=share,
            num_samples=np.broadcast_to(num_samples, len(tokens))[visited],
            scored=is_scored[visited],
        ),
    )


def _findable(lexicographic: Order, is_scored: npt.NDArray[np.bool_]) -> Lengths:
    """Return, in lexicographic order, how many leading tokens each prompt finds if the visiting order is the best one.

    Scored prompts find nothing, and all others can reuse what they compute, so the best order visits them first.
    """
    if not is_scored.any():
        return lexicographic.shared_with_before
    positions = lexicographic.positions
    seen = seen_lengths(lexicographic, np.concatenate([positions[is_scored], positions[~is_scored]]))
    findable = np.zeros_like(seen)
    findable[~is_scored] = seen[np.count_nonzero(is_scored) :]
    return findable
