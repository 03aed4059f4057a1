"""Limits of a job for a block size: most prefix hits, empty slots, most blocks in use. Pure functions on lengths.

Arrays have one entry per prompt, in visiting or in lexicographic order, as each function says. Prompts have at least
one token. The KV of a completion's last token is never stored, so a row stores `lengths + max_tokens - 1` tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import Lengths

Counts = npt.NDArray[np.int64]


def num_hit_blocks(lengths: Lengths, seen: Lengths, block_size: int) -> Lengths:
    """Return how many full blocks each row finds in an unlimited cache if it shares `seen` tokens with an earlier row.

    The last token of a row must be computed, so a last block that is full is not found.
    """
    return np.minimum(seen // block_size, (lengths - 1) // block_size)


def hit_ceiling(lengths: Lengths, shared_with_before: Lengths, block_size: int) -> int:
    """Return the most prompt tokens that a job can reuse in full blocks. The arrays are in lexicographic order.

    `shared_with_before` is 0 for a row that must not reuse anything.

    In this order a row shares most with the row before it, and a row that ends on a block boundary comes before its
    extensions. So the result is the sum over the nodes of the prefix tree of blocks of (rows through the node - max(1,
    rows that end exactly on it)), times the block size: the most that any order can give.
    """
    return int(num_hit_blocks(lengths, shared_with_before, block_size).sum()) * block_size


def tail_waste(lengths: Lengths, max_tokens: Counts, block_size: int) -> int:
    """Return how many slots stay empty in the last blocks of all rows if every completion has its maximum length."""
    return int((-(lengths + max_tokens - 1) % block_size).sum())


def num_blocks_needed(
    lengths: Lengths,
    max_tokens: Counts,
    seen: Lengths,
    shared_with_next: Lengths | None,
    *,
    block_size: int,
    max_num_seqs: int,
    share: bool,
    num_samples: Counts,
    scored: npt.NDArray[np.bool_],
) -> int:
    """Return an upper bound on the blocks that are used or kept idle at once. The arrays are in visiting order.

    Without a prefix cache it is the number of blocks of the `max_num_seqs` largest rows. With one it is at most the
    number of distinct blocks of the job and, if the next row is known (`shared_with_next`), at most what `max_num_seqs`
    rows and the path kept for the next row can hold together; a block that the next row copies from counts for the one
    that it does not hold yet. Each of a row's `num_samples` samples counts as a row; later samples share the full
    blocks of the prompt with the first. `scored` rows find nothing in the cache.
    """
    blocks = -(-(lengths + max_tokens - 1) // block_size)
    of_sample = np.repeat(blocks - lengths // block_size, num_samples - 1)  # blocks that only a later sample holds
    if not share:
        return _sum_of_largest(np.concatenate([blocks, of_sample]), max_num_seqs)
    distinct = int((blocks - num_hit_blocks(lengths, np.where(scored, 0, seen), block_size)).sum() + of_sample.sum())
    if shared_with_next is None:  # everything is kept
        return distinct
    if scored.any():
        return min(distinct, _sum_of_largest(np.concatenate([blocks, of_sample]), max_num_seqs + 1))
    most = _most_blocks_of(max_num_seqs + 1, blocks, of_sample, lengths, shared_with_next, block_size)
    return min(distinct, most)


def _most_blocks_of(
    num_rows: int, blocks: Counts, of_sample: Counts, lengths: Lengths, shared: Lengths, block_size: int
) -> int:
    """Return an upper bound on the distinct blocks that any `num_rows` rows and later samples hold together.

    The head of a row is the blocks that it shares with a neighbour, the tail those that no other row has; a later
    sample has only a tail. The heads of the rows have at most as many blocks as all distinct heads, and at most as many
    as the largest heads; their tails have at most as many as the largest tails.
    """
    # If one of two rows ends on a block boundary, it may have computed that block, its last, for itself.
    full = (lengths - 1) // block_size
    with_next = np.minimum(shared[:-1] // block_size, np.minimum(full[:-1], full[1:]))
    with_before, with_next = np.insert(with_next, 0, 0), np.append(with_next, 0)
    head = np.maximum(with_before, with_next)
    tails = np.concatenate([blocks - head, of_sample])
    num_distinct = int((head - with_before).sum())
    return min(num_distinct, _sum_of_largest(head, num_rows)) + _sum_of_largest(tails, num_rows)


def _sum_of_largest(values: npt.NDArray[np.integer], count: int) -> int:
    """Return the sum of the `count` largest values, or of all values if there are fewer."""
    rest = max(len(values) - count, 0)
    return int((np.partition(values, rest)[rest:] if rest else values).sum())
