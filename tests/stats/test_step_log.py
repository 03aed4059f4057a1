"""StepLog keeps a bounded, even sample."""

from __future__ import annotations

from itertools import pairwise

from batchgen.stats.counters import StepLog
from tests.stats.test_counters import step


def test_a_long_run_keeps_every_nth_step() -> None:
    log = StepLog()
    for number in range(20_000):
        log.append(float(number), step(used=1, empty=0))
    numbers = [number for number, _, _ in log.samples]
    assert len(numbers) <= 4096
    assert numbers[0] == 0
    assert {b - a for a, b in pairwise(numbers)} == {8}


def test_a_short_run_keeps_all() -> None:
    log = StepLog()
    for number in range(10):
        log.append(float(number), step(used=1, empty=0))
    assert [end for _, end, _ in log.samples] == [float(n) for n in range(10)]
