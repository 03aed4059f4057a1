"""TokenStore: what goes in comes out, from a mapped file; and what two prompts in it have in common."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.token_store import PackedTokens, TokenStore, next_tokens, shared_lengths
from tests.plan.texts import pack

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


def test_a_file_system_that_maps_no_files_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "memmap", fail)
    store = TokenStore(tmp_path / "tokens.bin")
    for prompt in PROMPTS:
        store.append(prompt)
    store.seal()
    assert contents(store) == PROMPTS


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


NOTHING_KNOWN = np.zeros(1, np.int32)


def shared(tokens: PackedTokens, known: int = 0) -> int:
    return int(shared_lengths(tokens, np.array([0]), np.array([1]), NOTHING_KNOWN + known)[0])


@pytest.mark.parametrize(
    ("a", "b", "expected"), [("abcd", "abxd", 2), ("abc", "abcdef", 3), ("abcdef", "abc", 3), ("x", "a", 0)]
)
def test_what_two_prompts_share_is_counted_in_tokens(a: str, b: str, expected: int) -> None:
    assert shared(pack([a, b])) == expected


def test_what_is_known_is_not_compared() -> None:
    assert shared(pack(["xbcd", "ybcz"]), known=1) == 3


def test_the_next_prompt_is_not_taken_for_the_rest_of_one() -> None:
    # In the store "ab" is followed by "abab": the tokens behind its end go on like the other prompt.
    assert shared(pack(["ab", "abab"])) == 2


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_equal_up_to_a_difference_or_an_end(num_equal: int, left: int, right: int) -> None:
    start = list(range(num_equal))
    assert shared(PackedTokens.pack([start + [1000] * left, start + [2000] * right])) == num_equal


def test_the_token_behind_the_shared_ones_or_minus_one() -> None:
    tokens = PackedTokens.pack([[5, 6], [7]])
    assert next_tokens(tokens, np.array([0, 0, 1]), np.array([1, 2, 1], np.int32)).tolist() == [6, -1, -1]
