"""Plan: the visiting order of a job and what can be known of its run beforehand. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.plan.order import prefix_order, shared_with_next
from batchgen.plan.token_store import TokenLists


@dataclass(frozen=True, slots=True)
class Plan:
    """In what order prompts run, and the limits this order is measured against."""

    order: list[int]  # positions in the token prompts, in visiting order
    # For every place of `order` the tokens shared with the next; None for `order: input`, where nothing is known.
    shared_with_next: list[int] | None
    num_prompt_tokens: int
    hit_ceiling: int  # prompt tokens that the best order and an endless cache would find, at this block size
    num_blocks_needed: int  # more blocks than this are never used at once


def make_plan(
    prompts: TokenLists,
    positions: Sequence[int],
    max_tokens: Sequence[int],
    *,
    block_size: int,
    max_num_seqs: int,
    by_prefix: bool,
    share: bool = True,
) -> Plan:
    """Plan the prompts at `positions` of the prompts.

    `max_tokens[position]` is the longest output of a prompt; `by_prefix` False keeps the input order; `share` False
    (no prefix cache) leaves no hits.
    """
    order = prefix_order(prompts, positions, max_tokens, block_size)
    shared = shared_with_next(prompts, order)
    lengths = [len(prompts[position]) for position in order]
    hits = _hit_blocks(lengths, shared, block_size) if share else [0] * len(order)
    blocks = [-(-(len(prompts[p]) + max_tokens[p] - 1) // block_size) for p in order]
    return Plan(
        order=order if by_prefix else sorted(positions),
        shared_with_next=shared if by_prefix else None,
        num_prompt_tokens=sum(lengths),
        hit_ceiling=sum(hits) * block_size,
        num_blocks_needed=_num_blocks_needed(blocks, hits, max_num_seqs),
    )


def _hit_blocks(lengths: Sequence[int], shared: Sequence[int], block_size: int) -> list[int]:
    """Full blocks each row of a depth-first order finds in the cache.

    In that order a row shares most with the row just before it. Its last token must be computed, so a full last block
    is not found. Summed up this is: over the nodes of the prefix tree (rows through it - max(1, rows that end exactly
    on it)), because rows that end on a border come first.
    """
    before = [0, *shared][:-1]
    return [min(s // block_size, (length - 1) // block_size) for s, length in zip(before, lengths, strict=True)]


def _num_blocks_needed(blocks: Sequence[int], hits: Sequence[int], max_num_seqs: int) -> int:
    """An upper bound: all distinct blocks of the job, or the largest rows at once and one path for the next."""
    distinct = sum(blocks) - sum(hits)
    largest = sorted(blocks, reverse=True)
    return min(distinct, sum(largest[:max_num_seqs]) + largest[0]) if largest else 0
