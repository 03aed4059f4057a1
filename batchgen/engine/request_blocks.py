"""RequestBlocks: which blocks a request holds. The scheduler says when, this says where. Plain Python.

All samples of a row hold the blocks of its prompt together, the half-filled last one too. Who writes to that one while
others hold it gets a copy first, and the last to write keeps the original (copy-on-write, as in PagedAttention, arXiv
2309.06180). So a block that is not full is written to by one request only.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Request
from batchgen.engine.step import BlockCopy


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """What the prefix cache has of a request's prompt."""

    chain: list[int]  # all full blocks that it begins with
    matched: list[int]  # those of them that the request can take


class RequestBlocks:
    """Keeps block tables, pool and prefix cache in step.

    Invariant: a request's table has just the blocks of its computed tokens.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self._size = cache.block_size

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Blocks to allocate before the first `num_tokens` tokens of the request have their slots."""
        num_new = self.num_blocks(num_tokens) - len(request.block_table)
        return max(num_new, 0) + self._writes_to_shared(request)

    def _writes_to_shared(self, request: Request) -> bool:
        """Whether the next token goes to a half-filled block that other samples hold too."""
        is_half = request.num_computed_tokens % self._size > 0
        return is_half and self.cache.pool.ref_count(request.block_table[-1]) > 1

    def find(self, request: Request) -> FoundBlocks:
        """Look the prompt up. Changes nothing."""
        chain = self.cache.match(request.prompt_token_ids)
        # At least one token must be computed: its logits are wanted.
        return FoundBlocks(chain, chain[: (request.num_tokens - 1) // self._size])

    def take(self, request: Request, found: FoundBlocks) -> None:
        """Give a request that holds nothing what was found of it."""
        self.cache.acquire(found.matched)
        if request.shared_with_next is not None:
            self.cache.keep_only(found.chain, request.shared_with_next // self._size)
        request.block_table = list(found.matched)
        request.num_computed_tokens = len(found.matched) * self._size
        request.num_indexed_blocks = len(found.matched)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens

    def extend(self, request: Request, stop: int) -> list[BlockCopy]:
        """Slots for tokens up to `stop`, which count as computed from here on; returns what must be copied first."""
        copies = [self._own_last_block(request)] if self._writes_to_shared(request) else []
        for _ in range(self.num_blocks(stop) - len(request.block_table)):
            request.block_table.append(self.cache.allocate())
        request.num_computed_tokens = stop
        self._index_filled_blocks(request)
        return copies

    def _own_last_block(self, request: Request) -> BlockCopy:
        shared = request.block_table[-1]
        request.block_table[-1] = self.cache.allocate()
        self.cache.release([shared])
        return BlockCopy(shared, request.block_table[-1])

    def fork(self, request: Request) -> None:
        """Its whole prompt is computed: the later samples of the row hold all its blocks too."""
        for sample in request.later_samples:
            self.cache.acquire(request.block_table)
            sample.block_table = list(request.block_table)
            sample.num_computed_tokens = request.num_computed_tokens
            sample.num_indexed_blocks = request.num_indexed_blocks
            sample.num_cached_tokens = sample.num_prompt_tokens

    def give_back(self, request: Request) -> None:
        """Let go of everything."""
        self.cache.release(request.block_table)
        request.block_table = []
        request.num_computed_tokens = 0
        request.num_indexed_blocks = 0

    def _index_filled_blocks(self, request: Request) -> None:
        """Let later rows share the prompt blocks that are full now. Only the prompt's: completions are not shared."""
        size = self._size
        num_full = min(request.num_computed_tokens, request.num_prompt_tokens) // size
        num_kept = num_full if request.shared_with_next is None else request.shared_with_next // size
        for position in range(request.num_indexed_blocks, num_full):
            parent = request.block_table[position - 1] if position else None
            tokens = request.prompt_token_ids[position * size : (position + 1) * size].tobytes()
            # Refused where an equal block is there: this row's last one, whose last token it had to compute again.
            self.cache.insert(request.block_table[position], parent, tokens, has_later_row=position < num_kept)
        request.num_indexed_blocks = max(request.num_indexed_blocks, num_full)
