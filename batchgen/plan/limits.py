"""What block sizes and pools can do for a job at best: hits, empty slots, blocks. Pure functions on lengths.

Arrays have one entry a prompt, in visiting order or in lexicographic order, as each function says. Prompts have at
least one token. All but the last token of a completion is stored, so a row stores `lengths + max_tokens - 1` tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import Lengths

Counts = npt.NDArray[np.int64]


def num_hit_blocks(lengths: Lengths, seen: Lengths, block_size: int) -> Lengths:
    """Full blocks that each row finds in an endless cache, when it has `seen` leading tokens with an earlier row.

    Its last token must be computed, so a full last block is not found.
    """
    return np.minimum(seen // block_size, (lengths - 1) // block_size)


def hit_ceiling(lengths: Lengths, shared_with_before: Lengths, block_size: int) -> int:
    """Most prompt tokens that full blocks of this size let a job reuse. The arrays are in lexicographic order.

    A row that reuses nothing whatever is there shares 0.

    There a row has most in common with the one before it, and a row that ends on a block border comes before those
    that go on. So this is, over the nodes of the prefix tree of blocks, the sum of (rows through the node - max(1, rows
    that end exactly on it)), times the block size: the most that any order can give.
    """
    return int(num_hit_blocks(lengths, shared_with_before, block_size).sum()) * block_size


def tail_waste(lengths: Lengths, max_tokens: Counts, block_size: int) -> int:
    """Slots that stay empty in the last blocks of all rows when every completion is as long as it may be."""
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
    """More blocks than this are never used or kept idle at once. The arrays are in visiting order.

    Without a prefix cache these are the blocks of the `max_num_seqs` largest rows. With one they are at most all
    distinct blocks of the job; when the future is known (`shared_with_next`) also at most what `max_num_seqs` rows and
    the path that is kept for the next one can hold together; a block that the next one is to copy from takes the place
    of one that it does not hold yet. Each of a row's `num_samples` samples counts as a row there; the later ones hold
    the full blocks of the prompt together with the first. `scored` rows find nothing.
    """
    blocks = -(-(lengths + max_tokens - 1) // block_size)
    of_sample = np.repeat(blocks - lengths // block_size, num_samples - 1)  # that a later sample has for itself
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
    """An upper bound of the distinct blocks that any `num_rows` rows and later samples hold together.

    The head of a row are the blocks that it has in common with a neighbour, the tail what nobody else has; a later
    sample is all tail. Of heads the rows hold at most all that there are, and at most the largest ones; of tails at
    most the largest ones.
    """
    # Where one of two rows ends on a block border it may have computed that block for itself, as its last.
    full = (lengths - 1) // block_size
    with_next = np.minimum(shared[:-1] // block_size, np.minimum(full[:-1], full[1:]))
    with_before, with_next = np.insert(with_next, 0, 0), np.append(with_next, 0)
    head = np.maximum(with_before, with_next)
    tails = np.concatenate([blocks - head, of_sample])
    num_distinct = int((head - with_before).sum())
    return min(num_distinct, _sum_of_largest(head, num_rows)) + _sum_of_largest(tails, num_rows)


def _sum_of_largest(values: npt.NDArray[np.integer], count: int) -> int:
    """The sum of the `count` largest values, of all if there are fewer."""
    rest = max(len(values) - count, 0)
    return int((np.partition(values, rest)[rest:] if rest else values).sum())
