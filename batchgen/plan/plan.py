"""Plan: the visiting order of a job and what can be known of its run beforehand. Needs no model."""

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
    """In what order prompts run, and the limits this order is measured against."""

    depth_first: Order  # all prompts, also where they are visited in input order
    order: Positions  # positions in the token store, in visiting order
    # For every place of `order` the leading tokens shared with the next; None for `order: input`: nothing is known.
    shared_with_next: Lengths | None
    seen: Lengths  # for every place of `order` the leading tokens shared with any prompt visited before
    num_prompt_tokens: int
    num_unique_tokens: int  # nodes of the prefix tree of tokens: what must be computed were blocks of no size
    hit_ceiling: int  # prompt tokens that the best order and an endless cache would find, at this block size
    ceilings: Mapping[int, int]  # block size -> the same, for BLOCK_SIZES
    tail_waste: Mapping[int, int]  # block size -> slots left empty in last blocks, for BLOCK_SIZES
    num_blocks_needed: int  # more blocks than this are never used and kept at once


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
    """Plan the prompts at `positions` (growing) of the store.

    `max_tokens[position]` is the longest output of a prompt; `by_prefix` False keeps the input order; `share` False
    (no prefix cache) leaves no hits. A prompt counts once, however many samples its row has
    (`num_samples[position]`). Prompts with `scored[position]` are computed whole, whatever is there already.
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
    """For every prompt in lexicographic order the leading tokens that it finds when the order is the best one.

    Scored prompts find nothing and leave all that they have to the others, so they would come first.
    """
    if not is_scored.any():
        return lexicographic.shared_with_before
    positions = lexicographic.positions
    seen = seen_lengths(lexicographic, np.concatenate([positions[is_scored], positions[~is_scored]]))
    findable = np.zeros_like(seen)
    findable[~is_scored] = seen[np.count_nonzero(is_scored) :]
    return findable
