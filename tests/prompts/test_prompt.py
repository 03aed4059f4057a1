"""Row keys: what a row's random draws depend on."""

from __future__ import annotations

from typing import Any

from batchgen.io.rows import Row
from batchgen.prompts.prompt import RowKeys, row_key


def keys(*ids: Any) -> list[bytes]:
    row_keys = RowKeys("id")
    return [row_keys.next(Row(index, f"line {index}", {"id": value})) for index, value in enumerate(ids)]


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    assert row_key(0, "a").hex() == "c62875166e836261157896139e048ab5"


def test_kind_type_and_value_tell_rows_apart() -> None:
    every = [row_key(1, None), row_key(2, None), row_key(0, 1), row_key(0, "1"), row_key(0, 1.0), row_key(0, True)]
    assert len(set(every)) == len(every)


def test_with_an_id_the_position_does_not_matter() -> None:
    assert keys("a", "b") == keys("b", "a")[::-1]


def test_a_repeated_id_counts_its_occurrences() -> None:
    first, other, second, third = keys("k", "m", "k", "k")
    assert len({first, other, second, third}) == 4
    assert [first, second, third] == keys("k", "k", "k")
    assert second == row_key(0, "k", 1)


def test_a_row_without_an_id_counts_by_its_position() -> None:
    assert keys("a", None, None)[1:] == [row_key(1, None), row_key(2, None)]
    assert RowKeys("id").next(Row(3, "line 3", {})) == row_key(3, None)
    assert RowKeys(None).next(Row(3, "line 3", {"id": "a"})) == row_key(3, None)


def test_an_id_with_half_a_surrogate_pair_has_a_key() -> None:
    assert row_key(0, "\ud83d") != row_key(0, "?")
