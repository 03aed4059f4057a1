"""TokenStore: what goes in comes out, from a mapped file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchgen.plan.token_store import PackedTokens, TokenStore

PROMPTS = [[5, 6, 7], [8], [2**31 - 1, 0]]


def contents(tokens: PackedTokens) -> list[list[int]]:
    return [tokens[position].tolist() for position in range(len(tokens))]


def test_prompts_come_back_by_position(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.bin")
    for prompt in PROMPTS:
        store.append(prompt)
    store.seal()
    assert contents(store) == PROMPTS
    assert store.lengths(np.array([2, 0])).tolist() == [2, 3]


def test_prompts_go_in_alone_or_many_at_once(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.bin")
    store.append([1, 2])
    store.extend([5, 6, 7, 8], [3, 1])
    store.extend([], [])
    store.append([9])
    store.seal()
    assert contents(store) == [[1, 2], [5, 6, 7], [8], [9]]


def test_lengths_that_do_not_add_up_are_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="add up"):
        TokenStore(tmp_path / "tokens.bin").extend([1, 2, 3], [1, 1])


def test_an_empty_store_can_be_sealed(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.bin")
    store.seal()
    assert len(store) == 0


def test_prompts_can_be_packed_in_memory() -> None:
    assert contents(PackedTokens.pack(PROMPTS)) == PROMPTS
    assert len(PackedTokens.pack([])) == 0
