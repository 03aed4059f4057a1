"""Row keys and rng keys: what a row's random draws depend on."""

from __future__ import annotations

from typing import Any

from batchgen.io.input.rows import Row
from batchgen.prompts.prompt import RowKeys, repeated_key, rng_key, row_key


def keys(*ids: Any) -> list[bytes]:
    row_keys = RowKeys("id")
    found = [row_keys.add(Row(index, f"line {index}", {"id": value})) for index, value in enumerate(ids)]
    for index, key in row_keys.repeated():
        found[index] = key
    return found


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    assert row_key(0, "a").hex() == "4ca7ffce470f91fdd47b39f1cec06fd4"


def test_kind_type_and_value_tell_rows_apart() -> None:
    every = [row_key(1, None), row_key(2, None), row_key(0, 1), row_key(0, "1"), row_key(0, 1.0), row_key(0, True)]
    assert len(set(every)) == len(every)


def test_with_an_id_the_index_does_not_matter() -> None:
    assert keys("a", "b") == keys("b", "a")[::-1]


def test_a_repeated_id_counts_its_occurrences() -> None:
    first, other, second, third = keys("k", "m", "k", "k")
    assert len({first, other, second, third}) == 4
    assert [first, second, third] == keys("k", "k", "k")
    assert second == repeated_key(first, 1)


def test_repeated_ids_are_found_among_many() -> None:
    found = keys(*[number % 700 for number in range(1000)])
    assert found[:700] == [row_key(0, number) for number in range(700)]
    assert found[700:] == [repeated_key(key, 1) for key in found[:300]]


def test_no_rows_have_no_repeated_ids() -> None:
    assert keys() == []


def test_a_row_without_an_id_is_known_by_its_index() -> None:
    assert keys("a", None, None)[1:] == [row_key(1, None), row_key(2, None)]
    assert RowKeys("id").add(Row(3, "line 3", {})) == row_key(3, None)


def test_an_id_with_half_a_surrogate_pair_has_a_key() -> None:
    assert row_key(0, "\ud83d") != row_key(0, "?")


def test_an_rng_key_depends_on_seed_and_row() -> None:
    assert len({rng_key(0, b"a"), rng_key(1, b"a"), rng_key(0, b"b")}) == 3
    assert rng_key(0, b"a") == rng_key(0, b"a")
    assert 0 <= rng_key(2**63 - 1, b"a" * 16) < 2**64
