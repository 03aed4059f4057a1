"""The order of a job: depth-first over the prefix tree of all prompts. Pure functions on token ids.

Depth-first order gives the most prefix hits that any order can give with a cache as large as the longest prompt
(SGLang, arXiv 2312.07104, theorem 3.1), and makes the future of a block one number: what a row shares with the next.
The lexicographic order of the token sequences is depth-first for every block size at once.

What each prompt has in common with all that were visited before it, in whatever order they are visited.
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
    """Prompts in an order, and what neighbours have in common."""

    positions: Positions  # in the token store
    shared: Lengths  # leading tokens in common with the next prompt; 0 for the last

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def shared_with_before(self) -> Lengths:
        """Leading tokens in common with the prompt before; 0 for the first."""
        return np.concatenate([np.zeros(1, np.int32), self.shared])[: len(self)]


class _Runs(NamedTuple):
    """Stretches of the order still to be sorted: the prompts at `[start, stop)` agree in their first `depth` tokens."""

    start: Positions
    stop: Positions
    depth: Lengths


def lexicographic_order(tokens: PackedTokens, positions: Sequence[int] | Positions) -> Order:
    """The prompts at `positions` by their tokens: a prompt before its extensions, equal prompts in the order given."""
    order = Order(np.array(positions, np.int64), np.zeros(len(positions), np.int32))
    whole = np.array([len(order)] if len(order) and len(tokens.ids) else [], np.int64)
    runs = _Runs(0 * whole, whole, np.zeros(len(whole), np.int32))
    generator = np.random.default_rng(0)
    while len(runs.start):
        # Picked at random, so that no input makes many rounds likely; the result does not depend on it.
        runs = _sort_runs(tokens, order, runs, generator.integers(runs.start, runs.stop))
    return order


def _sort_runs(tokens: PackedTokens, order: Order, runs: _Runs, pivot: Positions) -> _Runs:
    """Sort every run, in place, as far as comparing with the prompt at its place `pivot` goes; returns what is left.

    A prompt leaves the pivot's path after some tokens, to the left or to the right of it, by some token (its end comes
    before any token). These three put it in its place; only prompts that leave at the same token are still to be
    sorted among themselves, from the token after it on. So a token is read once, and once more in every round in which
    it lies in the window where its prompt leaves the pivot's path.
    """
    indices, run = _indices(runs)
    rows, pivots = order.positions[indices], order.positions[pivot][run]
    shared = shared_lengths(tokens, rows, pivots, runs.depth[run])
    key = _sort_key(tokens, rows, pivots, shared)
    by = np.lexsort((key, run))  # stable
    order.positions[indices] = rows[by]
    shared, key = shared[by], key[by]
    in_run = run[1:] == run[:-1]
    order.shared[indices[:-1][in_run]] = np.minimum(shared[:-1], shared[1:])[in_run]
    has_ended = (key[1:] & 0xFFFFFFFF) == 0  # then the prompts are equal
    return _runs(indices, in_run & (key[1:] == key[:-1]) & ~has_ended, shared)


def _indices(runs: _Runs) -> tuple[Positions, npt.NDArray[np.int32]]:
    """All places of the runs, and the number of the run that each lies in."""
    sizes = runs.stop - runs.start
    run = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return np.arange(len(run)) + (runs.start - np.cumsum(sizes) + sizes)[run], run


def _sort_key(tokens: PackedTokens, rows: Positions, pivots: Positions, shared: Lengths) -> npt.NDArray[np.int64]:
    """Upper half: where a prompt leaves the pivot's path. Lower half: by which token, 0 where it ends.

    Left of the pivot (by a lesser token) those that leave early come first, right of it they come last.
    """
    token, other = next_tokens(tokens, rows, shared), next_tokens(tokens, pivots, shared)
    side = (token > other).astype(np.int64) - (token < other)
    distance = side * (tokens.lengths(pivots) + 1 - shared)
    return distance << 32 | (token.astype(np.int64) + 1)


def _runs(indices: Positions, together: npt.NDArray[np.bool_], shared: Lengths) -> _Runs:
    """Maximal stretches of neighbours that stay together; they share one token more than those before them."""
    edges = np.diff(together, prepend=False, append=False)
    first, last = np.flatnonzero(edges)[::2], np.flatnonzero(edges)[1::2]
    return _Runs(indices[first], indices[last] + 1, shared[first] + 1)


def visiting_order(order: Order, tokens: PackedTokens, max_tokens: npt.ArrayLike, block_size: int) -> Order:
    """A lexicographic order with the longest expected output first where the rule of the block chains leaves a choice.

    Neighbours with the same chain of full blocks are sorted: those that end on the block border first (they compute
    the block that the others take), then by `max_tokens[position]`, the longest output, falling, then as they were.
    It stays depth-first at this block size. Where nothing changes the order comes back as it is.
    """
    lengths, longest = tokens.lengths(order.positions), np.asarray(max_tokens)[order.positions]
    chain = lengths // block_size * block_size
    same_chain = (chain[1:] == chain[:-1]) & (order.shared[:-1] >= chain[1:])
    if not np.any(same_chain & (longest[1:] != longest[:-1])):
        return order
    run = np.cumsum(~np.append(False, same_chain))
    tied = np.flatnonzero(np.append(same_chain, False) | np.append(False, same_chain))
    by = np.lexsort((-longest[tied], lengths[tied] > chain[tied], run[tied]))
    taken_from = np.arange(len(order))
    taken_from[tied] = tied[by]
    return _rearranged(order, tokens, taken_from, chain)


def _rearranged(order: Order, tokens: PackedTokens, taken_from: Positions, chain: Lengths) -> Order:
    """The order with each place taken from one that has the same chain: only new neighbours are compared."""
    positions, shared = order.positions[taken_from], order.shared.copy()
    moved = taken_from != np.arange(len(order))
    new = np.flatnonzero(moved[:-1] | moved[1:])
    known = np.minimum(order.shared[new], np.minimum(chain[new], chain[new + 1]))
    shared[new] = shared_lengths(tokens, positions[new], positions[new + 1], known)
    return Order(positions, shared)


_CHUNK = 1 << 16  # prompts taken as Python numbers at a time: quick to walk, and large


def seen_lengths(order: Order, visited: Positions) -> Lengths:
    """For every place of `visited` the leading tokens in common with any prompt visited before it.

    `order` is the lexicographic order of the same prompts. In it a prompt shares most with its nearest neighbour, on
    either side, of those visited before it: the least of what the neighbours from the one to the other share.
    """
    visit_index_of = np.empty(int(visited.max(initial=-1)) + 1, np.int32)
    visit_index_of[visited] = np.arange(len(visited))
    visit_index = visit_index_of[order.positions]
    seen = order.shared_with_before
    # These are visited after all that lie on their left and before all on their right: the value is right already.
    in_turn = (visit_index == np.arange(len(visit_index))) & (visit_index == np.maximum.accumulate(visit_index))
    _walk(visit_index[~in_turn], seen[~in_turn], seen.data)
    return seen


def _walk(indices: Lengths, shared_with_before: Lengths, seen: memoryview) -> None:
    """Set `seen` for these visiting places, which come in lexicographic order; linear.

    A stack keeps the rows that have met no earlier-visited one on their right yet: their places grow.
    """
    waiting: list[int] = []
    with_left: list[int] = []  # what each of them shares with the one before it on the stack
    for start in range(0, len(indices), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for visit_index, shared in zip(indices[chunk].tolist(), shared_with_before[chunk].tolist(), strict=True):
            with_next = shared
            while waiting and waiting[-1] > visit_index:
                left = with_left.pop()
                seen[waiting.pop()] = max(left, with_next)
                with_next = min(left, with_next)
            waiting.append(visit_index)
            with_left.append(with_next)
    for visit_index, left in zip(waiting, with_left, strict=True):
        seen[visit_index] = left
