"""TokenStore: what goes in comes out, from a mapped file."""

from __future__ import annotations

from pathlib import Path

from batchgen.plan.token_store import TokenStore


def test_prompts_come_back_by_position(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.bin")
    for prompt in ([5, 6, 7], [8], [2**31 - 1, 0]):
        store.append(prompt)
    store.seal()
    assert len(store) == 3
    assert [store[position].tolist() for position in range(3)] == [[5, 6, 7], [8], [2**31 - 1, 0]]


def test_an_empty_store_can_be_sealed(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.bin")
    store.seal()
    assert len(store) == 0
