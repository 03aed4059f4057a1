"""BlockPool: the free list and the reference counts of the KV blocks. Knows nothing of what a block contains.

free   on the free list, content meaningless
used   reference count > 0: the number of block tables that contain it
idle   reference count 0 but not free: the prefix cache keeps its content for a later request

allocate: free -> used      acquire: used or idle -> used
release:  used -> used or idle      free: idle -> free
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference counts and the free list of `num_blocks` blocks. Every operation is O(1).

    Invariant: a block is on the free list exactly once, or its reference count is the number of block tables that
    contain it, or it is idle.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_used = 0
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is most likely still cached

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return self.num_blocks - self.num_used - len(self._free)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def allocate(self) -> int:
        """Take a free block, with a reference count of 1. The caller has checked `num_free`."""
        block_id = self._free.pop()
        assert self._ref_counts[block_id] == 0
        self._ref_counts[block_id] = 1
        self.num_used += 1
        return block_id

    def acquire(self, block_id: int) -> None:
        """Increment the reference count of a used or idle block."""
        self.num_used += self._ref_counts[block_id] == 0
        self._ref_counts[block_id] += 1

    def release(self, block_id: int) -> int:
        """Decrement the reference count and return it. At 0 the block is idle until it is freed or acquired."""
        assert self._ref_counts[block_id] > 0
        self._ref_counts[block_id] -= 1
        self.num_used -= self._ref_counts[block_id] == 0
        return self._ref_counts[block_id]

    def free(self, block_id: int) -> None:
        """Put an idle block back on the free list."""
        assert self._ref_counts[block_id] == 0
        self._free.append(block_id)

    def check_integrity(self, block_tables: Iterable[Sequence[int]], idle: Iterable[int]) -> None:
        """Recompute every count from the block tables of all requests and the idle blocks of the prefix cache."""
        held = Counter(block_id for table in block_tables for block_id in table)
        assert [held[block_id] for block_id in range(self.num_blocks)] == self._ref_counts
        assert self.num_used == len(held)
        idle_set = set(idle)
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        parts = (set(held), idle_set, set(self._free))
        assert sum(map(len, parts)) == self.num_blocks
        assert set.union(*parts) == set(range(self.num_blocks)), "a block is lost"
