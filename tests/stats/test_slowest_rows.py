"""SlowestRows keeps few of many."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from batchgen.engine import observer
from batchgen.stats.counters import RowTime, SlowestRows
from tests.stats.scripted import run_script


def test_the_twenty_slowest_are_kept_slowest_first() -> None:
    slowest = SlowestRows()
    for row in range(1000):
        slowest.observe(RowTime(float(row * 7 % 1000), row, 1))
    assert [row.seconds for row in slowest.rows()] == [float(seconds) for seconds in range(999, 979, -1)]


def test_a_rows_time_begins_with_its_first_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows that run one after the other the second waits while the first runs. The clock ticks when read."""
    ticks = count()
    monkeypatch.setattr(observer, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    slow, fast = run_script(["aaaa", "bbbb"], max_num_seqs=1).report.slowest_rows
    assert {slow.row_index, fast.row_index} == {0, 1}
    assert slow.seconds < 1.5 * fast.seconds
