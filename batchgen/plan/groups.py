"""Prefix groups: runs of neighbours in visiting order that share enough to be treated as one. A pure function.

Used for statistics, for attention (a group's shared blocks are read once for all its rows) and for scale-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import Positions


class PrefixGroup(NamedTuple):
    """Rows `[start, stop)` of an order that share their first `num_blocks` blocks."""

    start: int
    stop: int
    num_blocks: int


@dataclass(slots=True)
class _OpenNode:
    """A node of the prefix tree whose last row is not known yet."""

    start: int
    num_blocks: int
    num_groups: int  # groups chosen before its first row
    best: tuple[int, int] = (0, 0)  # the highest rank of the nodes below it


def prefix_groups(shared_blocks: npt.ArrayLike) -> list[PrefixGroup]:
    """Disjoint groups, greedily by (rows - 1) * blocks, in the order of their rows; rows in no group are left out.

    `shared_blocks[i]` is the number of leading blocks that rows i and i + 1 have in common, for n rows n - 1 numbers.
    The greedy choice keeps a template that all rows begin with from making one group of everything; of equals the one
    that begins first is taken.

    Candidates are the nodes of the prefix tree. Greedy takes those that outrank every node below them and are not below
    another such node. So one walk does: a node that outranks all below it replaces what was chosen there.
    """
    shared = np.append(np.asarray(shared_blocks, np.int64), 0)
    rows = np.flatnonzero(np.diff(shared, prepend=0))  # at all others no node begins or ends
    groups: list[PrefixGroup] = []
    path: list[_OpenNode] = []  # blocks growing
    for row, num_blocks in zip(rows.tolist(), shared[rows].tolist(), strict=True):
        node = _OpenNode(row, num_blocks, len(groups))
        while path and path[-1].num_blocks > num_blocks:
            node = path.pop()
            _close(node, row + 1, groups)
            if path and path[-1].num_blocks >= num_blocks:
                path[-1].best = max(path[-1].best, node.best)
        if num_blocks and (not path or path[-1].num_blocks < num_blocks):
            node.num_blocks = num_blocks  # a node just closed goes on as its parent, which begins with the same row
            path.append(node)
    return groups


def _close(node: _OpenNode, stop: int, groups: list[PrefixGroup]) -> None:
    """Rows `[start, stop)` are all that the node has: choose it if it outranks all below it."""
    rank = ((stop - node.start - 1) * node.num_blocks, -node.start)
    if rank > node.best:
        groups[node.num_groups :] = [PrefixGroup(node.start, stop, node.num_blocks)]
        node.best = rank


class Spread(NamedTuple):
    """A distribution in three numbers; all 0 of nothing."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, values: npt.NDArray[np.int64]) -> Spread:
        """Of an even number of values the median is the upper one of the middle two."""
        if not len(values):
            return cls(0, 0, 0)
        return cls(int(values.min()), int(np.partition(values, len(values) // 2)[len(values) // 2]), int(values.max()))


@dataclass(frozen=True, slots=True)
class LargeGroup:
    """One group, for a table."""

    first_row: int  # position in the token store of the row that comes first in the input
    num_rows: int
    prefix_tokens: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The groups of a job at a glance."""

    num_groups: int
    num_rows: int  # in groups
    rows: Spread  # of a group
    prefix_tokens: Spread  # of a group, in full blocks
    largest: list[LargeGroup]  # by rows


def summarise_groups(
    groups: Sequence[PrefixGroup], order: Positions, block_size: int, *, num_largest: int = 10
) -> GroupSummary:
    """Number and sizes of the groups, and the ones with most rows. `order` are the positions the groups count in."""
    start, stop, num_blocks = np.array(groups, np.int64).reshape(-1, 3).T
    rows, prefix_tokens = stop - start, num_blocks * block_size
    largest = np.argsort(-rows, kind="stable")[:num_largest]
    return GroupSummary(
        num_groups=len(groups),
        num_rows=int(rows.sum()),
        rows=Spread.of(rows),
        prefix_tokens=Spread.of(prefix_tokens),
        largest=[
            LargeGroup(int(order[start[i] : stop[i]].min()), int(rows[i]), int(prefix_tokens[i])) for i in largest
        ],
    )
