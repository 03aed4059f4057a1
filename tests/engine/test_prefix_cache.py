"""PrefixCache with blocks of 4 tokens in a pool of 4, checked by hand."""

from __future__ import annotations

import numpy as np

from batchgen.engine.block_pool import BlockPool
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.plan.token_store import TokenIds

SIZE = 4


def ids(text: str) -> TokenIds:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def make_cache(*, lru: bool = False) -> PrefixCache:
    return PrefixCache(BlockPool(4), SIZE, lru=lru)


def put(cache: PrefixCache, text: str, *, has_later_row: bool = True) -> list[int]:
    """Index the full blocks of `text` as a request would that computes them; returns its block table."""
    table = cache.match(ids(text))
    cache.acquire(table)
    for start in range(len(table) * SIZE, len(text) - SIZE + 1, SIZE):
        block = cache.allocate()
        tokens = ids(text[start : start + SIZE]).tobytes()
        assert cache.insert(block, table[-1] if table else None, tokens, num_kept=SIZE * has_later_row)
        table.append(block)
    return table


def test_match_is_the_longest_chain_of_full_blocks() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbb")
    assert cache.match(ids("aaaabbbbcc")) == table
    assert cache.match(ids("aaaabbbx")) == table[:1]
    assert cache.match(ids("aaa")) == []


def test_equal_tokens_after_another_parent_are_another_block() -> None:
    cache = make_cache()
    first, second = put(cache, "aaaabbbb"), put(cache, "ccccbbbb")
    assert first[1] != second[1]
    assert cache.match(ids("ccccbbbb")) == second


def test_equal_blocks_are_indexed_once() -> None:
    cache = make_cache()
    put(cache, "aaaa")
    assert not cache.insert(cache.allocate(), None, ids("aaaa").tobytes(), num_kept=SIZE)


def test_a_released_block_with_a_later_row_stays() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbb")
    cache.release(table)
    assert cache.match(ids("aaaabbbb")) == table
    assert cache.pool.num_idle == 2
    cache.check_integrity([])


def test_a_released_block_without_a_later_row_is_freed() -> None:
    cache = make_cache()
    cache.release(put(cache, "aaaabbbb", has_later_row=False))
    assert cache.pool.num_free == 4
    assert cache.match(ids("aaaabbbb")) == []


def test_idle_blocks_beyond_what_the_next_row_shares_are_freed() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbbcccc")
    cache.release(table)
    cache.retain(table, num_tokens=SIZE)
    assert cache.match(ids("aaaabbbbcccc")) == table[:1]
    assert cache.pool.num_free == 3
    cache.check_integrity([])


def test_held_blocks_without_a_later_row_go_with_their_last_holder() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbb")
    cache.acquire(table)
    cache.retain(table, num_tokens=0)
    cache.release(table)
    assert cache.match(ids("aaaabbbb")) == table
    cache.release(table)
    assert cache.pool.num_free == 4


def test_what_a_later_row_marked_is_kept_when_an_earlier_one_comes_again() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbb")
    cache.retain(table, num_tokens=0)
    cache.retain(table, num_tokens=SIZE)
    cache.release(table)
    assert cache.match(ids("aaaabbbb")) == table[:1]
    cache.check_integrity([])


def test_the_deepest_idle_block_is_evicted_first() -> None:
    cache = make_cache()
    long, short = put(cache, "aaaabbbbcccc"), put(cache, "dddd")
    cache.release(long)
    cache.release(short)
    cache.allocate()
    assert cache.match(ids("aaaabbbbcccc")) == long[:2]
    assert cache.match(ids("dddd")) == short
    assert cache.num_evictions == 1


def test_lru_evicts_what_was_released_first() -> None:
    cache = make_cache(lru=True)
    short, long = put(cache, "dddd"), put(cache, "aaaabbbbcccc")
    cache.release(short)
    cache.release(long)
    cache.allocate()
    assert cache.match(ids("dddd")) == []
    assert cache.match(ids("aaaabbbbcccc")) == long


def test_lru_keeps_what_was_used_again() -> None:
    cache = make_cache(lru=True)
    first, second = put(cache, "aaaa"), put(cache, "bbbb")
    cache.release(first)
    cache.release(second)
    cache.acquire(first)
    cache.release(first)
    for _ in range(3):  # two free ones, then one eviction
        cache.allocate()
    assert cache.match(ids("bbbb")) == []
    assert cache.match(ids("aaaa")) == first


def test_disabled_nothing_is_indexed() -> None:
    cache = PrefixCache(BlockPool(4), SIZE, enabled=False)
    assert not cache.insert(cache.allocate(), None, ids("aaaa").tobytes(), num_kept=SIZE)


def test_the_eviction_heap_does_not_grow_with_reuse() -> None:
    cache = make_cache()
    table = put(cache, "aaaa")
    for _ in range(1000):
        cache.release(table)
        cache.acquire(table)
    assert len(cache._idle_heap) < 100


def put_then_step(cache: PrefixCache, text: str) -> list[int]:
    table = put(cache, text)
    cache.begin_step()
    return table


def test_half_match_is_what_the_block_that_came_last_begins_with() -> None:
    cache = make_cache()
    table = put_then_step(cache, "aaaabbbb")
    assert cache.partial_match(table[0], ids("bbxx")) == (table[1], 2)
    assert cache.partial_match(table[0], ids("bx")) == (table[1], 1)
    assert cache.partial_match(None, ids("aa")) == (table[0], 2)
    assert cache.partial_match(table[0], ids("xbbb")) is None


def test_a_half_shared_block_waits_for_the_next_row_only() -> None:
    cache = make_cache()
    table = put(cache, "aaaabbbb")
    cache.retain(table, num_tokens=6)
    cache.release(table)
    assert (cache.is_idle(table[0]), cache.is_idle(table[1])) == (True, True)
    cache.retain(table[:1], num_tokens=4)  # the next row has come
    assert (cache.is_idle(table[0]), cache.is_idle(table[1])) == (True, False)
    cache.check_integrity([])
