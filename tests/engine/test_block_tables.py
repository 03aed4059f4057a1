"""Block tables as one array: what rows are in a step, and what they take over."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.block_tables import BlockTables
from batchgen.engine.request import Request
from batchgen.sampling_params import SamplingParams


def request(*blocks: int) -> Request:
    made = Request(0, np.zeros(1, np.int32), SamplingParams(), 0, max_tokens=1)
    made.block_table = list(blocks)
    return made


def test_padded_with_0_to_the_longest() -> None:
    assert BlockTables().of([request(5), request(3, 4)]).tolist() == [[5, 0], [3, 4]]


def test_a_table_grows_and_copy_on_write_replaces_its_last_entry() -> None:
    tables, row = BlockTables(), request(1, 2)
    tables.of([row])
    row.block_table = [1, 3]
    assert tables.of([row]).tolist() == [[1, 3]]
    row.block_table = [1, 4, 5, 6]
    assert tables.of([row]).tolist() == [[1, 4, 5, 6]]


def test_a_row_that_was_away_is_written_whole() -> None:
    tables, row, other = BlockTables(), request(1, 2, 3), request(9)
    tables.of([row])
    tables.of([other])
    row.block_table = [4, 5, 3]
    assert tables.of([other, row]).tolist() == [[9, 0, 0], [4, 5, 3]]


def test_forgotten_rows_are_written_whole() -> None:
    tables, row = BlockTables(), request(1, 2)
    tables.of([row])
    tables.forget()
    row.block_table = [3, 2]
    assert tables.of([row]).tolist() == [[3, 2]]


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=5), max_size=8))
def test_any_steps_give_what_the_rows_have(steps: list[list[tuple[int, int, bool]]]) -> None:
    """A step is of (row, blocks that it grows by, whether its last one is replaced); who is away may change wholly."""
    tables, rows, blocks = BlockTables(), [request(row) for row in range(5)], iter(range(10, 10**6))
    here: set[int] = set()
    for step in steps:
        wanted = {row: (growth, replaced) for row, growth, replaced in step}
        for row, (growth, replaced) in wanted.items():
            table = rows[row].block_table
            kept = table[: len(table) - replaced] if row in here else []
            num_new = len(table) - len(kept) + growth
            rows[row].block_table = kept + [next(blocks) for _ in range(num_new)]
        here = set(wanted)
        if not wanted:
            tables.forget()
            continue
        longest = max(len(rows[row].block_table) for row in wanted)
        expected = [rows[row].block_table + [0] * (longest - len(rows[row].block_table)) for row in wanted]
        assert tables.of([rows[row] for row in wanted]).tolist() == expected
