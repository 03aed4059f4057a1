"""The order of a job: depth-first over the prefix tree of all prompts. Pure functions on token ids.

Depth-first order gives the most prefix hits that any order can give with a cache as large as the longest prompt
(SGLang, arXiv 2312.07104, theorem 3.1), and one number says which blocks to keep: what a row shares with the next.
The lexicographic order of the token sequences is depth-first for every block size at once.

`seen_lengths` says what each prompt shares with all prompts visited before it, for any visiting order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import Lengths, PackedTokens, Positions, next_tokens, shared_lengths


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Prompts in some order, and what neighbours have in common."""

    positions: Positions  # in the token store
    shared: Lengths  # leading tokens in common with the next prompt; 0 for the last

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def shared_with_before(self) -> Lengths:
        """Leading tokens in common with the prompt before; 0 for the first."""
        return np.concatenate([np.zeros(1, np.int32), self.shared])[: len(self)]


class _Runs(NamedTuple):
    """Runs still to be sorted: the prompts at indices `[start, stop)` of the order share their first `depth` tokens."""

    start: Positions
    stop: Positions
    depth: Lengths


def lexicographic_order(tokens: PackedTokens, positions: Sequence[int] | Positions) -> Order:
    """Return the prompts at `positions` sorted by their tokens; equal prompts keep the given order."""
    order = Order(np.array(positions, np.int64), np.zeros(len(positions), np.int32))
    whole = np.array([len(order)] if len(order) and len(tokens.ids) else [], np.int64)
    runs = _Runs(0 * whole, whole, np.zeros(len(whole), np.int32))
    generator = np.random.default_rng(0)
    while len(runs.start):
        # Pivots are random, so that no input makes many rounds likely; the result does not depend on them.
        runs = _sort_runs(tokens, order, runs, generator.integers(runs.start, runs.stop))
    return order


def _sort_runs(tokens: PackedTokens, order: Order, runs: _Runs, pivot: Positions) -> _Runs:
    """Sort every run in place by comparing its prompts with the one at index `pivot`; return the runs left to sort.

    A prompt differs from the pivot after some number of tokens, by a lesser or a greater token (its end is less than
    any token). These three values are its sort key. Only prompts with equal keys are still to be sorted among
    themselves, from the next token on. So a token is read once, and once more in every round in which it is in the
    window where its prompt differs from the pivot.
    """
    indices, run = _indices(runs)
    positions, pivots = order.positions[indices], order.positions[pivot][run]
    shared = shared_lengths(tokens, positions, pivots, runs.depth[run])
    key = _sort_key(tokens, positions, pivots, shared)
    by = np.lexsort((key, run))  # stable
    order.positions[indices] = positions[by]
    shared, key = shared[by], key[by]
    in_run = run[1:] == run[:-1]
    order.shared[indices[:-1][in_run]] = np.minimum(shared[:-1], shared[1:])[in_run]
    has_ended = (key[1:] & 0xFFFFFFFF) == 0  # then they are equal prompts
    return _runs(indices, in_run & (key[1:] == key[:-1]) & ~has_ended, shared)


def _indices(runs: _Runs) -> tuple[Positions, npt.NDArray[np.int32]]:
    """Return all indices of the runs, and the number of the run that each belongs to."""
    sizes = runs.stop - runs.start
    run = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return np.arange(len(run)) + (runs.start - np.cumsum(sizes) + sizes)[run], run


def _sort_key(tokens: PackedTokens, positions: Positions, pivots: Positions, shared: Lengths) -> npt.NDArray[np.int64]:
    """Return the sort keys. Upper half: after how many tokens a prompt differs from its pivot. Lower half: by which.

    Of the prompts before the pivot (with a lesser token) those that differ early come first, of those behind it last.
    The token is 0 where the prompt ends.
    """
    token, other = next_tokens(tokens, positions, shared), next_tokens(tokens, pivots, shared)
    side = (token > other).astype(np.int64) - (token < other)
    distance = side * (tokens.lengths(pivots) + 1 - shared)
    return distance << 32 | (token.astype(np.int64) + 1)


def _runs(indices: Positions, together: npt.NDArray[np.bool_], shared: Lengths) -> _Runs:
    """Return the maximal runs of neighbours that stay together; these share one token more than with the pivot."""
    edges = np.diff(together, prepend=False, append=False)
    first, last = np.flatnonzero(edges)[::2], np.flatnonzero(edges)[1::2]
    return _Runs(indices[first], indices[last] + 1, shared[first] + 1)


def visiting_order(order: Order, tokens: PackedTokens, max_tokens: npt.ArrayLike, block_size: int) -> Order:
    """Return a lexicographic order with the longest expected outputs first, as far as it stays depth-first.

    Neighbours with the same chain of full blocks are sorted: those that end on a block boundary first (they compute
    the block that the others reuse), then by descending `max_tokens[position]`, the longest output; the sort is stable.
    The result is depth-first at this block size, and is `order` itself if nothing changes.
    """
    lengths, longest = tokens.lengths(order.positions), np.asarray(max_tokens)[order.positions]
    chain = lengths // block_size * block_size
    same_chain = (chain[1:] == chain[:-1]) & (order.shared[:-1] >= chain[1:])
    if not np.any(same_chain & (longest[1:] != longest[:-1])):
        return order
    run = np.cumsum(~np.append(False, same_chain))
    tied = np.flatnonzero(np.append(same_chain, False) | np.append(False, same_chain))
    by = np.lexsort((-longest[tied], lengths[tied] > chain[tied], run[tied]))
    sources = np.arange(len(order))
    sources[tied] = tied[by]
    return _rearranged(order, tokens, sources, chain)


def _rearranged(order: Order, tokens: PackedTokens, sources: Positions, chain: Lengths) -> Order:
    """Return the order with entry i taken from index `sources[i]`, which has the same chain of full blocks.

    Only new neighbours are compared.
    """
    positions, shared = order.positions[sources], order.shared.copy()
    moved = sources != np.arange(len(order))
    new = np.flatnonzero(moved[:-1] | moved[1:])
    known = np.minimum(order.shared[new], np.minimum(chain[new], chain[new + 1]))
    shared[new] = shared_lengths(tokens, positions[new], positions[new + 1], known)
    return Order(positions, shared)


_CHUNK = 1 << 16  # prompts converted to Python integers at a time: those are fast to walk, but large


def seen_lengths(order: Order, visited: Positions) -> Lengths:
    """Return, for every visit index, how many leading tokens the prompt shares with any prompt visited before it.

    `visited` are the positions in visiting order, `order` is the lexicographic order of the same prompts. There a
    prompt shares most with the nearest prompt, on either side, that is visited before it: the minimum of what the
    neighbours between the two share.
    """
    position_to_visit_index = np.empty(int(visited.max(initial=-1)) + 1, np.int32)
    position_to_visit_index[visited] = np.arange(len(visited))
    visit_indices = position_to_visit_index[order.positions]
    seen = order.shared_with_before
    # A prompt that is visited after all on its left and before all on its right has the right value already.
    is_in_order = (visit_indices == np.arange(len(visit_indices))) & (
        visit_indices == np.maximum.accumulate(visit_indices)
    )
    _walk(visit_indices[~is_in_order], seen[~is_in_order], seen.data)
    return seen


def _walk(visit_indices: Lengths, shared_with_before: Lengths, seen: memoryview) -> None:
    """Set `seen` at these visit indices, which are given in lexicographic order, in linear time.

    A stack keeps the prompts without an earlier-visited prompt on their right so far: visit indices increase in it.
    """
    waiting: list[int] = []
    with_left: list[int] = []  # what each of them shares with the one below it on the stack
    for start in range(0, len(visit_indices), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for visit_index, shared in zip(visit_indices[chunk].tolist(), shared_with_before[chunk].tolist(), strict=True):
            with_next = shared
            while waiting and waiting[-1] > visit_index:
                left = with_left.pop()
                seen[waiting.pop()] = max(left, with_next)
                with_next = min(left, with_next)
            waiting.append(visit_index)
            with_left.append(with_next)
    for visit_index, left in zip(waiting, with_left, strict=True):
        seen[visit_index] = left
