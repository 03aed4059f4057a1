"""PrefixCache: which block contains which prompt tokens, and which blocks are kept for later rows.

Full blocks are shared. If a row shares only the beginning of a block with another row, it copies that block (full, or
the last one of a prompt) and computes the rest.

Decides what is shared, kept and evicted. Knows token ids and block ids; knows nothing of requests and tensors.

The key of a block is (parent block, its token ids): exact, never only a hash. The id of the parent can stand for the
whole chain before the block because a block leaves the index only after its children: `_evict` takes the deepest block
first, and a request that holds a block holds its parents.

The visiting order (`plan/order.py`) decides what is kept: when a row is admitted, no later row needs those of its
blocks that are deeper than what it shares with the next row (`retain`), and they are freed as soon as no request holds
them. So the idle blocks are exactly the path of the next row. If that row shares only part of the last block of the
path, the block is kept until the row is admitted and has copied it. If the order is not known, all full blocks are
kept and the least recently used one is evicted first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batchgen.engine.block_pool import BlockPool
from batchgen.plan.token_store import TokenIds


@dataclass(slots=True)
class CachedBlock:
    """An indexed block: a node of the prefix tree; a leaf if its tokens do not fill it."""

    parent: int | None
    tokens: bytes
    depth: int  # number of blocks before it in the chain
    has_later_row: bool
    children: dict[int, None] = field(default_factory=dict)  # an ordered set, by time of insertion


class PartialMatch(NamedTuple):
    """A block whose first `num_tokens` tokens are the wanted ones."""

    block_id: int
    num_tokens: int


class PrefixCache:
    """The index over a BlockPool; only the cache allocates from the pool.

    Invariant: the parent of an indexed block is indexed; an idle block is indexed and has a later row.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool = True, lru: bool = False) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enabled = enabled
        self.lru = lru  # evict the least recently used instead of the deepest
        self.num_evictions = 0
        self._block_ids: dict[tuple[int | None, bytes], int] = {}
        self._blocks: dict[int, CachedBlock] = {}
        self._roots: dict[int, None] = {}  # the blocks without a parent, an ordered set like `children`
        self._new: set[int] = set()  # indexed in this step
        self._awaits_copy: int | None = None  # the block that is kept until the next row has copied its beginning
        # (eviction key, block id), smallest key evicted first. Entries of blocks that are no longer idle are skipped.
        self._idle_heap: list[tuple[tuple[int, int], int]] = []
        self._idle_key: dict[int, tuple[int, int]] = {}
        self._clock = 0

    @property
    def num_available(self) -> int:
        """Number of blocks that can be allocated: free and idle ones."""
        return self.pool.num_free + self.pool.num_idle

    def match(self, token_ids: TokenIds) -> list[int]:
        """Return the longest chain of indexed full blocks that `token_ids` begins with. Changes nothing."""
        chain: list[int] = []
        parent: int | None = None
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            block_id = self._block_ids.get((parent, token_ids[start : start + self.block_size].tobytes()))
            if block_id is None:
                break
            chain.append(block_id)
            parent = block_id
        return chain

    def begin_step(self) -> None:
        """Begin a step: the blocks indexed so far are computed."""
        self._new.clear()

    def rollback_step(self) -> None:
        """Undo a step: the blocks indexed in it are never computed, and are freed as soon as no request holds them.

        Their children were indexed in this step too, so that no block of the index loses its parent.
        """
        for block_id in self._new:
            assert not self.is_idle(block_id)
            self._blocks[block_id].has_later_row = False

    def partial_match(self, parent: int | None, token_ids: TokenIds) -> PartialMatch | None:
        """Return the newest child of `parent` if it begins as `token_ids` do, else None. Changes nothing.

        In depth-first order no other child has more in common with the next row.
        """
        source = next(reversed(self._siblings(parent)), None)
        if source is None:
            return None
        tokens = np.frombuffer(self._blocks[source].tokens, token_ids.dtype)[: len(token_ids)]
        num_equal = int(np.cumprod(tokens == token_ids[: len(tokens)]).sum())
        return PartialMatch(source, num_equal) if num_equal else None

    def is_idle(self, block_id: int) -> bool:
        return block_id in self._idle_key

    def allocate(self) -> int:
        """Take a block, with a reference count of 1; evict an idle one if none is free.

        The caller has checked `num_available`.
        """
        if self.pool.num_free == 0:
            self._evict()
        return self.pool.allocate()

    def acquire(self, block_ids: Sequence[int]) -> None:
        """Increment the reference count of every block of a matched chain."""
        for block_id in block_ids:
            self._idle_key.pop(block_id, None)
            self.pool.acquire(block_id)

    def insert(self, block_id: int, parent: int | None, tokens: bytes, *, num_kept: int) -> bool:
        """Index a block that a request holds; return whether it was indexed.

        It is not if a block with the same tokens is indexed already, or if its parent was refused for that reason.
        `tokens` are the prompt tokens in it, at most a full block; a later row has the first `num_kept` of them.
        """
        is_known = (parent, tokens) in self._block_ids or (parent is not None and parent not in self._blocks)
        if not self.enabled or is_known:
            return False
        depth = 0 if parent is None else self._blocks[parent].depth + 1
        self._siblings(parent)[block_id] = None
        self._block_ids[parent, tokens] = block_id
        self._blocks[block_id] = CachedBlock(parent, tokens, depth, has_later_row=num_kept > 0)
        self._new.add(block_id)
        if 0 < num_kept < self.block_size:
            assert self._awaits_copy is None, "two blocks wait to be copied by the next row"
            self._awaits_copy = block_id
        return True

    def _siblings(self, parent: int | None) -> dict[int, None]:
        return self._roots if parent is None else self._blocks[parent].children

    def retain(self, chain: Sequence[int], num_tokens: int) -> None:
        """Keep what the next row needs of the chain that the row now admitted matched: its first `num_tokens` tokens.

        Idle blocks of the chain behind those are freed at once, and so is the block that this row was to copy from.
        Blocks to keep are marked again, as a row admitted after this one and preempted since may have unmarked them.
        """
        num_kept = -(-num_tokens // self.block_size)
        dead = list(chain[num_kept:])
        if self._awaits_copy is not None and self._awaits_copy not in chain:
            dead.append(self._awaits_copy)
        is_last_partial = num_tokens % self.block_size > 0 and num_kept <= len(chain)
        self._awaits_copy = chain[num_kept - 1] if is_last_partial else None
        for block_id in chain[:num_kept]:
            self._blocks[block_id].has_later_row = True
        for block_id in reversed(dead):
            self._blocks[block_id].has_later_row = False
            if self.is_idle(block_id):
                self._drop(block_id)

    def release(self, block_table: Sequence[int], *, is_sound: bool = True) -> None:
        """Release every block, deepest first. Those with no holder left become idle if a later row has them, or free.

        Blocks that are not sound (their row failed) are kept only as far as other kept blocks were computed on them.
        """
        for block_id in reversed(block_table):
            if self.pool.release(block_id):
                continue
            block = self._blocks.get(block_id)
            if block is not None and block.has_later_row and (is_sound or block.children):
                self._keep_idle(block_id, block)
            else:
                self._drop(block_id)

    def _keep_idle(self, block_id: int, block: CachedBlock) -> None:
        # `release` goes deepest first, so by the clock too a child is older than its parent and is evicted before it.
        self._clock += 1
        key = (0 if self.lru else -block.depth, self._clock)
        self._idle_key[block_id] = key
        heapq.heappush(self._idle_heap, (key, block_id))
        if len(self._idle_heap) > 2 * len(self._idle_key) + 64:  # mostly entries of blocks that are in use again
            self._idle_heap = [(key, block_id) for block_id, key in self._idle_key.items()]
            heapq.heapify(self._idle_heap)

    def _evict(self) -> None:
        while True:
            key, block_id = heapq.heappop(self._idle_heap)
            if self._idle_key.get(block_id) == key:
                break
        self.num_evictions += 1
        self._drop(block_id)

    def _drop(self, block_id: int) -> None:
        """Free a block with reference count 0, after removing it from the index if it is indexed."""
        block = self._blocks.pop(block_id, None)
        if block is not None:
            assert not block.children, "a block left the index before its children"
            del self._block_ids[block.parent, block.tokens]
            del self._siblings(block.parent)[block_id]
        if self._awaits_copy == block_id:
            self._awaits_copy = None
        self._idle_key.pop(block_id, None)
        self.pool.free(block_id)

    def check_integrity(self, block_tables: Sequence[Sequence[int]]) -> None:
        """Check every invariant of pool and index from scratch."""
        self.pool.check_integrity(block_tables, self._idle_key)
        for block_id, block in self._blocks.items():
            assert self._block_ids[block.parent, block.tokens] == block_id
            assert block_id in self._siblings(block.parent)
            if block.parent is not None:
                assert block.depth == self._blocks[block.parent].depth + 1
        assert len(self._block_ids) == len(self._blocks)
        assert len(self._roots) + sum(len(block.children) for block in self._blocks.values()) == len(self._blocks)
        assert self._awaits_copy is None or self._blocks[self._awaits_copy].has_later_row
        for block_id in self._idle_key:
            assert self._blocks[block_id].has_later_row, "a block without a later row is kept idle"
