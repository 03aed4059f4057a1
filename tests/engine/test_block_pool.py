"""BlockPool: 4 blocks, checked by hand."""

from __future__ import annotations

import pytest

from batchgen.engine.block_pool import BlockPool


def test_a_block_goes_through_its_states() -> None:
    pool = BlockPool(4)
    block = pool.allocate()
    pool.acquire(block)
    assert (pool.num_used, pool.num_idle, pool.num_free) == (1, 0, 3)
    assert pool.release(block) == 1
    assert pool.release(block) == 0
    assert (pool.num_used, pool.num_idle, pool.num_free) == (0, 1, 3)
    pool.free(block)
    assert (pool.num_used, pool.num_idle, pool.num_free) == (0, 0, 4)


def test_an_idle_block_can_be_acquired_again() -> None:
    pool = BlockPool(4)
    block = pool.allocate()
    pool.release(block)
    pool.acquire(block)
    pool.check_integrity([[block]], idle=[])


def test_a_held_block_cannot_be_freed() -> None:
    pool = BlockPool(4)
    with pytest.raises(AssertionError):
        pool.free(pool.allocate())


def test_integrity_sees_a_holder_that_did_not_acquire() -> None:
    pool = BlockPool(4)
    block = pool.allocate()
    with pytest.raises(AssertionError):
        pool.check_integrity([[block], [block]], idle=[])


def test_integrity_sees_a_lost_block() -> None:
    pool = BlockPool(4)
    pool.release(pool.allocate())
    with pytest.raises(AssertionError):
        pool.check_integrity([], idle=[])
