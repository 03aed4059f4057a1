"""Prefix groups: runs of neighbours in visiting order that share enough to be treated as one. A pure function.

Used for statistics, for attention (a group's shared blocks are read once for all its rows) and for scale-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PrefixGroup(NamedTuple):
    """Rows `[start, stop)` of an order that share their first `num_blocks` blocks."""

    start: int
    stop: int
    num_blocks: int


def prefix_groups(shared_blocks: Sequence[int]) -> list[PrefixGroup]:
    """Disjoint groups, greedily by (rows - 1) * blocks, in the order of their rows; rows in no group are left out.

    `shared_blocks[i]` is the number of leading blocks that rows i and i + 1 have in common, for n rows n - 1 numbers.
    The greedy choice keeps a template that all rows begin with from making one group of everything.
    """
    taken = [False] * (len(shared_blocks) + 1)
    groups: list[PrefixGroup] = []
    for group in sorted(_ancestors(shared_blocks), key=lambda g: (-(g.stop - g.start - 1) * g.num_blocks, g.start)):
        # Candidates are nested or disjoint, so looking at both ends is looking at all rows, and at what lies within.
        if not any(taken[group.start : group.stop]):
            taken[group.start : group.stop] = [True] * (group.stop - group.start)
            groups.append(group)
    return sorted(groups)


def _ancestors(shared_blocks: Sequence[int]) -> list[PrefixGroup]:
    """Every branching node of the prefix tree with its rows: the maximal runs that share a given number of blocks."""
    nodes: list[PrefixGroup] = []
    open_nodes: list[tuple[int, int]] = []  # (first row, blocks), blocks increasing
    for row, shared in enumerate([*shared_blocks, 0]):
        start = row
        while open_nodes and open_nodes[-1][1] > shared:
            start, num_blocks = open_nodes.pop()
            nodes.append(PrefixGroup(start, row + 1, num_blocks))
        if shared and (not open_nodes or open_nodes[-1][1] < shared):
            open_nodes.append((start, shared))
    return nodes
