"""RequestBlocks: which blocks a request holds. The scheduler says when, this says where. Plain Python.

All samples of a row hold the blocks of its prompt together, the half-filled last one too. Who writes to that one while
others hold it gets a copy first, and the last to write keeps the original (copy-on-write, as in PagedAttention, arXiv
2309.06180). So a block that is not full is written to by one request only.

A block that a step fills may have tokens from earlier steps, and tokens that this step computes for one row or for
several: whoever copies its beginning takes each from where it comes from (BlockOrigin).
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
    """What the prefix cache has of a request's prompt."""

    chain: list[int]  # all full blocks that it begins with
    matched: list[int]  # those of them that the request can take
    partial: BlockSource | None = None  # where the first tokens behind those can be copied from

    @property
    def num_copied(self) -> int:
        """Tokens to copy."""
        return 0 if self.partial is None else self.partial.num_tokens


class RequestBlocks:
    """Keeps block tables, pool and prefix cache in step.

    Invariant: a request's table has just the blocks of its computed tokens.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self._size = cache.block_size
        self._sources: dict[int, BlockSource] = {}  # of the prompt blocks that this step fills

    def begin_step(self) -> None:
        """What was scheduled so far is computed now."""
        self.cache.begin_step()
        self._sources.clear()

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Blocks to allocate before the first `num_tokens` tokens of the request have their slots."""
        num_new = self.num_blocks(num_tokens) - len(request.block_table)
        return max(num_new, 0) + self.writes_to_shared(request)

    def writes_to_shared(self, request: Request) -> bool:
        """Whether the next token goes to a half-filled block that other samples hold too."""
        table, num_computed = request.block_table, request.num_computed_tokens
        if not table or self.cache.pool.ref_count(table[-1]) == 1:
            return False
        return num_computed % self._size > 0 and len(table) == self.num_blocks(num_computed)

    def num_shared(self, request: Request, num_matched: int) -> int:
        """Leading full blocks of a request that others hold too or will hold: they do not go when it ends."""
        if request.params.n > 1:
            return request.num_prompt_tokens // self._size
        if not self.cache.enabled:
            return 0
        num_found = max(num_matched, (request.num_cached_tokens or 0) // self._size)
        return max(num_found, (request.shared_with_next or 0) // self._size)

    def find(self, request: Request) -> FoundBlocks:
        """Look the prompt up. Changes nothing."""
        chain = self.cache.match(request.prompt_token_ids)
        if request.block_table:  # a later sample holds its prompt
            return FoundBlocks(chain, [])
        # At least one token must be computed: its logits are wanted.
        if request.computes_whole_prompt:
            return FoundBlocks(chain, [])
        matched = chain[: (request.num_tokens - 1) // self._size]
        # What comes back takes no more than it had: the rest was accounted for as not found.
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
        """Give a request what was found of it. What is to be copied has no block before `extend`."""
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
        """What must be copied for a request that took `found` and was extended since, of earlier steps and of this."""
        if found.partial is None:
            return [], []
        target = request.block_table[len(found.matched)]
        if target in self._sources:
            self._sources[target] = found.partial.followed_by(self._sources[target].computed)
        return found.partial.copies(target), found.partial.repeats(target)

    def extend(self, request: Request, stop: int) -> list[BlockCopy]:
        """Slots for tokens up to `stop`, which count as computed from here on; returns what must be copied first."""
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
        """Its whole prompt is computed: the later samples of the row hold all its blocks too."""
        for sample in request.later_samples:
            self.cache.acquire(request.block_table)
            sample.block_table = list(request.block_table)
            sample.num_computed_tokens = request.num_computed_tokens
            sample.num_indexed_blocks = request.num_indexed_blocks
            sample.num_cached_tokens = sample.num_prompt_tokens

    def unfork(self, request: Request, samples: Sequence[Request]) -> None:
        """The end of its prompt is not computed after all: these later samples of the row hold nothing yet."""
        for sample in samples:
            self.release(sample)
            sample.status, sample.num_cached_tokens = RequestStatus.WAITING, None
        request.later_samples = samples

    def release(self, request: Request, *, is_sound: bool = True) -> None:
        """Let go of everything; of blocks that are not `is_sound` nothing is kept that only this request used."""
        self.cache.release(request.block_table, is_sound=is_sound)
        request.block_table = []
        request.num_computed_tokens = 0
        request.num_indexed_blocks = 0

    def _index_prompt(self, request: Request, start: int) -> None:
        """Let later rows share the prompt's blocks that are full now, and copy from its last one once it is there.

        Only the prompt's: completions are not shared. This step computes the tokens from `start` on.
        """
        size, num_prompt = self._size, request.num_prompt_tokens
        is_whole = request.num_computed_tokens >= num_prompt
        num_blocks = self.num_blocks(num_prompt) if is_whole else request.num_computed_tokens // size
        for position in range(request.num_indexed_blocks, num_blocks):
            parent = request.block_table[position - 1] if position else None
            tokens = request.prompt_token_ids[position * size : (position + 1) * size]
            num_kept = _num_kept(request, position * size, len(tokens), size)
            # Refused where an equal block is there: this row's last one, whose last token it had to compute again, or
            # all of them where it computes its whole prompt.
            if self.cache.insert(request.block_table[position], parent, tokens.tobytes(), num_kept=num_kept):
                first = max(start, position * size)
                computed = ComputedTokens(request, first, position * size + len(tokens))
                block_id = request.block_table[position]
                self._sources[block_id] = BlockSource(block_id, first - position * size, (computed,))
        request.num_indexed_blocks = max(request.num_indexed_blocks, num_blocks)


def _num_kept(request: Request, start: int, num_tokens: int, block_size: int) -> int:
    """How many tokens of a prompt block are kept for the next row. Of an unknown future only full blocks are."""
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
    """The first tokens of a block: `num_earlier` of block `earlier`, as it was before this step, and what follows."""

    earlier: int
    num_earlier: int
    computed: tuple[ComputedTokens, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_earlier + sum(part.stop - part.start for part in self.computed)

    def first(self, num_tokens: int) -> BlockSource:
        """The first `num_tokens` of them."""
        left = num_tokens - self.num_earlier
        parts: list[ComputedTokens] = []
        for part in self.computed:
            if left <= 0:
                break
            parts.append(part._replace(stop=min(part.stop, part.start + left)))
            left -= part.stop - part.start
        return BlockSource(self.earlier, min(self.num_earlier, num_tokens), tuple(parts))

    def followed_by(self, computed: tuple[ComputedTokens, ...]) -> BlockSource:
        return BlockSource(self.earlier, self.num_earlier, self.computed + computed)

    def copies(self, target: int) -> list[BlockCopy]:
        """What goes to block `target` before the step. It may be there: nobody wanted it, and it was first at hand."""
        return [BlockCopy(self.earlier, target)] if self.num_earlier and self.earlier != target else []

    def repeats(self, target: int) -> list[Repeat]:
        """What goes to block `target` while the step is computed."""
        return [Repeat(*part, target) for part in self.computed]
