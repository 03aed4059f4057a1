"""RequestBlocks: which blocks a request holds. The scheduler decides when, this room decides where. Plain Python.

All samples of a row share the blocks of its prompt, the partially filled last one included. A sample that writes to a
block while others hold it gets a copy first, and the last one to write keeps the original (copy-on-write, as in
PagedAttention, arXiv 2309.06180). So a partially filled block is written by one request only.

A block that a step fills may contain tokens of earlier steps, and tokens that this step computes for one or several
rows: a request that copies its beginning takes each part from where it comes from (BlockSource).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Request, RequestStatus
from batchgen.engine.step import BlockCopy, Repeat
from batchgen.plan.token_store import TokenIds


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """The part of a request's prompt that the prefix cache has."""

    chain: list[int]  # all cached full blocks that the prompt begins with
    matched: list[int]  # the leading ones that the request takes
    partial: BlockSource | None = None  # the source to copy the first tokens behind those from

    @property
    def num_copied(self) -> int:
        """Number of tokens to copy."""
        return 0 if self.partial is None else self.partial.num_tokens


class RequestBlocks:
    """Keeps block tables, pool and prefix cache consistent.

    Invariant: the block table of a request has exactly the blocks of its computed tokens.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self._size = cache.block_size
        self._sources: dict[int, BlockSource] = {}  # block id -> source, for the prompt blocks that this step fills

    def begin_step(self) -> None:
        """Begin a step: what was scheduled so far is computed."""
        self.cache.begin_step()
        self._sources.clear()

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Return how many blocks to allocate until the first `num_tokens` tokens of the request have slots."""
        num_new = self.num_blocks(num_tokens) - len(request.block_table)
        return max(num_new, 0) + self.writes_to_shared(request)

    def writes_to_shared(self, request: Request) -> bool:
        """Whether the next token goes to a partially filled block that other samples hold too."""
        table, num_computed = request.block_table, request.num_computed_tokens
        if not table or self.cache.pool.ref_count(table[-1]) == 1:
            return False
        return num_computed % self._size > 0 and len(table) == self.num_blocks(num_computed)

    def num_shared(self, request: Request, num_matched: int) -> int:
        """Return how many leading full blocks others hold or will hold: they stay in use when this request ends."""
        if request.params.n > 1:
            return request.num_prompt_tokens // self._size
        if not self.cache.enabled:
            return 0
        num_found = max(num_matched, (request.num_cached_tokens or 0) // self._size)
        return max(num_found, (request.shared_with_next or 0) // self._size)

    def find(self, request: Request) -> FoundBlocks:
        """Look up the prompt in the prefix cache. Changes nothing."""
        chain = self.cache.match(request.prompt_token_ids)
        if request.block_table:  # a later sample holds the blocks of its prompt already
            return FoundBlocks(chain, [])
        if request.computes_whole_prompt:
            return FoundBlocks(chain, [])
        # At least one token must be computed, for its logits.
        matched = chain[: (request.num_tokens - 1) // self._size]
        # After a preemption a request copies no more tokens than it had: the others were counted as computed.
        limit = request.num_tokens - 1 if request.num_cached_tokens is None else request.num_lost_tokens
        wanted = request.prompt_token_ids[len(matched) * self._size : limit][: self._size]
        return FoundBlocks(chain, matched, self._find_partial(matched[-1] if matched else None, wanted))

    def _find_partial(self, parent: int | None, wanted: TokenIds) -> BlockSource | None:
        partial = self.cache.partial_match(parent, wanted)
        if partial is None:
            return None
        source = self._sources.get(partial.block_id)
        return BlockSource(partial.block_id, partial.num_tokens) if source is None else source.first(partial.num_tokens)

    def take(self, request: Request, found: FoundBlocks) -> None:
        """Give a request the blocks that were found. The block to copy into is allocated later, by `extend`."""
        self.cache.acquire(found.matched)
        if request.shared_with_next is not None:
            self.cache.retain(found.chain, request.shared_with_next)
        if request.block_table:
            return
        request.block_table = list(found.matched)
        request.num_computed_tokens = len(found.matched) * self._size + found.num_copied
        request.num_indexed_blocks = len(found.matched)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens

    def copies_for(self, request: Request, found: FoundBlocks) -> tuple[list[BlockCopy], list[Repeat]]:
        """Return the copies of earlier tokens, and the second writes of this step's, that fill the partial block found.

        The request has taken `found` and was extended since.
        """
        if found.partial is None:
            return [], []
        target = request.block_table[len(found.matched)]
        if target in self._sources:
            self._sources[target] = found.partial.followed_by(self._sources[target].computed)
        return found.partial.copies(target), found.partial.repeats(target)

    def extend(self, request: Request, stop: int) -> list[BlockCopy]:
        """Allocate slots for the tokens up to `stop`, which count as computed now; return the copies needed first."""
        copies = [self._copy_on_write(request)] if self.writes_to_shared(request) else []
        for _ in range(self.num_blocks(stop) - len(request.block_table)):
            request.block_table.append(self.cache.allocate())
        start, request.num_computed_tokens = request.num_computed_tokens, stop
        if request.num_indexed_blocks * self._size < request.num_prompt_tokens:
            self._index_prompt(request, start)
        return copies

    def _copy_on_write(self, request: Request) -> BlockCopy:
        shared = request.block_table[-1]
        request.block_table[-1] = self.cache.allocate()
        self.cache.release([shared])
        return BlockCopy(shared, request.block_table[-1])

    def fork(self, request: Request) -> None:
        """Let the later samples of the row hold all blocks of the request, whose prompt is computed."""
        for sample in request.later_samples:
            self.cache.acquire(request.block_table)
            sample.block_table = list(request.block_table)
            sample.num_computed_tokens = request.num_computed_tokens
            sample.num_indexed_blocks = request.num_indexed_blocks
            sample.num_cached_tokens = sample.num_prompt_tokens

    def unfork(self, request: Request, samples: Sequence[Request]) -> None:
        """Undo `fork`: the end of the prompt was not computed, so these later samples hold no blocks yet."""
        for sample in samples:
            self.release(sample)
            sample.status, sample.num_cached_tokens = RequestStatus.WAITING, None
        request.later_samples = samples

    def release(self, request: Request, *, is_sound: bool = True) -> None:
        """Release all blocks; if they are not sound, none that only this request used is kept in the cache."""
        self.cache.release(request.block_table, is_sound=is_sound)
        request.block_table = []
        request.num_computed_tokens = 0
        request.num_indexed_blocks = 0

    def _index_prompt(self, request: Request, start: int) -> None:
        """Index the prompt blocks that are full now, and the last one too once the whole prompt is computed.

        Completions are not shared. This step computes the tokens from `start` on.
        """
        size, num_prompt = self._size, request.num_prompt_tokens
        is_whole = request.num_computed_tokens >= num_prompt
        num_blocks = self.num_blocks(num_prompt) if is_whole else request.num_computed_tokens // size
        for index in range(request.num_indexed_blocks, num_blocks):
            block_id, block_start = request.block_table[index], index * size
            parent = request.block_table[index - 1] if index else None
            tokens = request.prompt_token_ids[block_start : block_start + size]
            num_kept = _num_kept(request, block_start, len(tokens), size)
            # Refused if an equal block is indexed: the last one of a row that had to recompute its last token, and all
            # those of a row that computes its whole prompt.
            if self.cache.insert(block_id, parent, tokens.tobytes(), num_kept=num_kept):
                first = max(start, block_start)
                computed = ComputedTokens(request, first, block_start + len(tokens))
                self._sources[block_id] = BlockSource(block_id, first - block_start, (computed,))
        request.num_indexed_blocks = max(request.num_indexed_blocks, num_blocks)


def _num_kept(request: Request, start: int, num_tokens: int, block_size: int) -> int:
    """Return how many tokens of a prompt block to keep for the next row: all of a full block if that row is unknown."""
    if request.shared_with_next is None:
        return num_tokens if num_tokens == block_size else 0
    return min(max(request.shared_with_next - start, 0), num_tokens)


class ComputedTokens(NamedTuple):
    """Tokens `[start, stop)` of a request, computed in this step."""

    request: Request
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The first tokens of a block: `num_earlier` of block `earlier` as it was before this step, then `computed`."""

    earlier: int
    num_earlier: int
    computed: tuple[ComputedTokens, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_earlier + sum(part.stop - part.start for part in self.computed)

    def first(self, num_tokens: int) -> BlockSource:
        """Return the source of the first `num_tokens` of these tokens."""
        left = num_tokens - self.num_earlier
        parts: list[ComputedTokens] = []
        for part in self.computed:
            if left <= 0:
                break
            parts.append(part._replace(stop=min(part.stop, part.start + left)))
            left -= part.stop - part.start
        return BlockSource(self.earlier, min(self.num_earlier, num_tokens), tuple(parts))

    def followed_by(self, computed: tuple[ComputedTokens, ...]) -> BlockSource:
        """Return the source of these tokens and `computed` behind them."""
        return BlockSource(self.earlier, self.num_earlier, self.computed + computed)

    def copies(self, target: int) -> list[BlockCopy]:
        """Return the copy to block `target` before the step; none if `earlier` itself was freed and allocated again."""
        return [BlockCopy(self.earlier, target)] if self.num_earlier and self.earlier != target else []

    def repeats(self, target: int) -> list[Repeat]:
        """Return the second writes to block `target` while the step is computed."""
        return [Repeat(*part, target) for part in self.computed]
