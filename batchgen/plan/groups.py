"""Prefix groups: runs of neighbouring rows that share a long prefix. Pure functions on numbers of shared blocks.

Used for statistics and for attention, which reads the shared blocks of a group once for all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import Positions


class PrefixGroup(NamedTuple):
    """Rows `[start, stop)` of some order, which share their first `num_blocks` blocks."""

    start: int
    stop: int
    num_blocks: int


@dataclass(slots=True)
class _OpenNode:
    """A node of the prefix tree whose last row has not been reached yet."""

    start: int
    num_blocks: int
    num_groups: int  # number of groups chosen before its first row
    best: tuple[int, int] = (0, 0)  # the highest rank of the nodes below it


def prefix_groups(shared_blocks: npt.ArrayLike) -> list[PrefixGroup]:
    """Return disjoint groups, chosen greedily by (rows - 1) * blocks, in the order of their rows.

    `shared_blocks[i]` is the number of leading blocks that rows i and i + 1 have in common; n - 1 numbers for n rows.
    Rows in no group are left out. The greedy choice prevents a template that all rows begin with from making one group
    of everything; of equally ranked groups the one that begins first is taken.

    Candidates are the nodes of the prefix tree. The greedy choice takes those that outrank every node below them and
    are not below another such node. So one walk suffices: a node that outranks all nodes below replaces their groups.
    """
    shared = np.append(np.asarray(shared_blocks, np.int64), 0)
    rows = np.flatnonzero(np.diff(shared, prepend=0))  # no node begins or ends at any other row
    groups: list[PrefixGroup] = []
    path: list[_OpenNode] = []  # from the root down, so `num_blocks` increases
    for row, num_blocks in zip(rows.tolist(), shared[rows].tolist(), strict=True):
        node = _OpenNode(row, num_blocks, len(groups))
        while path and path[-1].num_blocks > num_blocks:
            node = path.pop()
            _close(node, row + 1, groups)
            if path and path[-1].num_blocks >= num_blocks:
                path[-1].best = max(path[-1].best, node.best)
        if num_blocks and (not path or path[-1].num_blocks < num_blocks):
            node.num_blocks = num_blocks  # a node just closed continues as its parent, which begins with the same row
            path.append(node)
    return groups


def _close(node: _OpenNode, stop: int, groups: list[PrefixGroup]) -> None:
    """Close a node, whose rows are `[start, stop)`: it becomes a group if it outranks all nodes below it."""
    rank = ((stop - node.start - 1) * node.num_blocks, -node.start)
    if rank > node.best:
        groups[node.num_groups :] = [PrefixGroup(node.start, stop, node.num_blocks)]
        node.best = rank


class Spread(NamedTuple):
    """A distribution in three numbers; all of them 0 for no values."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, values: npt.NDArray[np.int64]) -> Spread:
        """Return the spread of the values. The median of an even number of values is the larger of the middle two."""
        if not len(values):
            return cls(0, 0, 0)
        return cls(int(values.min()), int(np.partition(values, len(values) // 2)[len(values) // 2]), int(values.max()))


@dataclass(frozen=True, slots=True)
class LargeGroup:
    """One group, for a table."""

    first_row: int  # position in the token store of its first row in input order
    num_rows: int
    prefix_tokens: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Statistics of the groups of a job."""

    num_groups: int
    num_rows: int  # in all groups
    rows: Spread  # rows per group
    prefix_tokens: Spread  # prefix tokens per group, in full blocks
    largest: list[LargeGroup]  # those with the most rows


def summarise_groups(
    groups: Sequence[PrefixGroup], order: Positions, block_size: int, *, num_largest: int = 10
) -> GroupSummary:
    """Return number and sizes of the groups, and those with the most rows. `order[i]` is the position of row i."""
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
