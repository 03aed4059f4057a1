"""The visiting order of a job: depth-first over the prefix tree of all prompts. Pure functions on token ids.

Depth-first order gives the most prefix hits that any order can give with a cache as large as the longest prompt
(SGLang, arXiv 2312.07104, theorem 3.1), and makes the future of a block one number: what a row shares with the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from batchgen.plan.token_store import TokenIds, TokenLists


def prefix_order(
    prompts: TokenLists, positions: Sequence[int], max_tokens: Sequence[int], block_size: int
) -> list[int]:
    """`positions` of the prompts in depth-first order of their chains of full blocks.

    Siblings come in the order of their first row. Among rows with the same chain those that end on the block border
    come first (they compute the block that the others take), then the longest expected output, then input order.
    `max_tokens[position]` is the longest output of that prompt.
    """
    order: list[int] = []
    # (rows that share their first `depth` blocks, depth); a stack makes the walk depth-first without recursion
    pending = [(list(positions), 0)]
    while pending:
        rows, depth = pending.pop()
        if len(rows) > 1:
            depth = _common_blocks(prompts, rows, depth, block_size)
        ending, children = _split(prompts, rows, depth, block_size)
        order += sorted(ending, key=lambda row: (len(prompts[row]) % block_size != 0, -max_tokens[row], row))
        pending += [(child, depth + 1) for child in reversed(children)]
    return order


def _split(prompts: TokenLists, rows: list[int], depth: int, block_size: int) -> tuple[list[int], list[list[int]]]:
    """Rows whose chain ends at `depth`, and the others by their next block."""
    start, stop = depth * block_size, (depth + 1) * block_size
    ending: list[int] = []
    children: dict[bytes, list[int]] = {}
    for row in rows:
        if len(prompts[row]) < stop:
            ending.append(row)
        else:
            children.setdefault(prompts[row][start:stop].tobytes(), []).append(row)
    return ending, list(children.values())


def _common_blocks(prompts: TokenLists, rows: list[int], depth: int, block_size: int) -> int:
    """How many leading blocks all rows have in common, `depth` being known."""
    first = prompts[rows[0]]
    common = len(first)
    for row in rows[1:]:
        common = min(
            common, depth * block_size + shared_length(first[depth * block_size :], prompts[row][depth * block_size :])
        )
        if common < (depth + 1) * block_size:
            break
    return max(common // block_size, depth)


def shared_length(a: TokenIds, b: TokenIds) -> int:
    """How many leading tokens two prompts have in common."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def shared_with_next(prompts: TokenLists, order: Sequence[int]) -> list[int]:
    """For every row of the order the leading tokens it shares with the next one; 0 for the last."""
    shared = [shared_length(prompts[row], prompts[following]) for row, following in pairwise(order)]
    return shared + [0] * bool(order)
