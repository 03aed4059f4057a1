"""Block tables as one array: what rows are in a step, and what they take over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.batch import BlockTables


def test_padded_with_0_to_the_longest() -> None:
    assert BlockTables().update([[5], [3, 4]]).tolist() == [[5, 0], [3, 4]]


def test_a_table_grows_and_copy_on_write_replaces_its_last_entry() -> None:
    tables, row = BlockTables(), [1, 2]
    tables.update([row])
    row[-1] = 3
    assert tables.update([row]).tolist() == [[1, 3]]
    row[-1] = 4
    row += [5, 6]
    assert tables.update([row]).tolist() == [[1, 4, 5, 6]]


def test_rows_come_leave_and_change_places() -> None:
    tables, first, second = BlockTables(), [1, 2], [3]
    tables.update([first, second])
    assert tables.update([second, [7, 8], first]).tolist() == [[3, 0], [7, 8], [1, 2]]
    assert tables.update([first]).tolist() == [[1, 2]]


def test_a_row_that_lost_its_blocks_has_another_list() -> None:
    tables = BlockTables()
    tables.update([[1, 2, 3]])
    assert tables.update([[4, 5, 3]]).tolist() == [[4, 5, 3]]


@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 3), st.booleans()), min_size=1), max_size=8)
)
def test_any_steps_give_what_the_rows_have(steps: list[dict[int, tuple[int, bool]]]) -> None:
    """A step is of rows, the blocks they grow by and whether their last one is replaced."""
    tables, rows, blocks = BlockTables(), [[row] for row in range(5)], iter(range(10, 10**6))
    for step in steps:
        for row, (growth, is_replaced) in step.items():
            if is_replaced:
                rows[row][-1] = next(blocks)
            rows[row] += [next(blocks) for _ in range(growth)]
        longest = max(len(rows[row]) for row in step)
        expected = [rows[row] + [0] * (longest - len(rows[row])) for row in step]
        assert tables.update([rows[row] for row in step]).tolist() == expected
