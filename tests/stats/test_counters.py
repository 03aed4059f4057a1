"""RunStats from two or three events; StepLog is an even sample of bounded size; SlowestRows keeps few of many."""

from __future__ import annotations

from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from batchgen.engine import observer
from batchgen.stats.counters import RowTime, RunStats, SlowestRows, StepLog, StepStats
from batchgen.stats.prompt_tokens import PromptTokens
from tests.stats.scripted import run_script


def step(used: int, empty: int, **changes: Any) -> StepStats:
    values = {
        "seconds": 1.0,
        "num_running": 2,
        "num_waiting": 0,
        "num_prefill_tokens": 3,
        "num_decode_tokens": 1,
        "num_sampled_tokens": 2,
        "num_overrun_tokens": 0,
        "num_used_blocks": used,
        "num_logical_blocks": used,
        "num_stored_tokens": 4 * used - empty,
        "num_idle_blocks": 0,
        "num_free_blocks": 1,
        "num_empty_slots": empty,
        "num_preempted": 0,
        "waits_for_blocks": False,
        "waits_for_reservation": False,
        "num_held_back": 0,
        "num_refused_though_free": 0,
    }
    return StepStats(**{**values, **changes})


def make_stats() -> RunStats:
    return RunStats(block_size=4, max_model_len=32)


def test_fragmentation_is_a_mean_over_time_and_a_peak() -> None:
    stats = make_stats()
    stats.observe_step(step(used=2, empty=2), 1.0)  # 2 of 8 slots
    stats.observe_step(step(used=4, empty=2), 2.0)  # 2 of 16
    assert stats.internal_fragmentation == 4 / 24
    assert stats.peak_internal_fragmentation == 0.25
    assert stats.peak_used_blocks == 4
    assert stats.empty_slots_per_row == 1.0


def test_nothing_ran_means_no_figure() -> None:
    stats = make_stats()
    stats.observe_step(step(used=0, empty=0), 1.0)
    figures = (
        stats.internal_fragmentation,
        stats.peak_internal_fragmentation,
        stats.empty_slots_per_row,
        stats.sharing,
        stats.static_reservation_waste,
        stats.hit_rate,
        stats.held_back_share,
        stats.tail_share(),
    )
    assert figures == (None,) * 8


def test_sharing_is_what_logical_blocks_saved() -> None:
    stats = make_stats()
    stats.observe_step(step(used=6, empty=0, num_logical_blocks=8), 1.0)
    assert stats.sharing == 0.25


def test_static_reservation_would_have_left_most_slots_empty() -> None:
    stats = make_stats()
    stats.observe_step(step(used=4, empty=4, num_stored_tokens=12), 1.0)  # of 2 rows with 32 slots each
    assert stats.static_reservation_waste == 1 - 12 / 64


def test_rows_held_back_are_a_share_of_those_that_could_have_run() -> None:
    stats = make_stats()
    stats.observe_step(step(used=2, empty=0, num_running=2, num_held_back=2), 1.0)
    stats.observe_step(step(used=2, empty=0, num_running=4), 2.0)
    assert stats.held_back_share == 2 / 8
    assert stats.mean_running == 3.0


def test_a_step_is_shared_out_by_its_tokens() -> None:
    stats = make_stats()
    stats.observe_step(step(used=1, empty=0), 1.0)
    assert (stats.prefill_seconds, stats.decode_seconds) == (0.75, 0.25)


def test_groups_and_all_rows_add_up() -> None:
    stats = make_stats()
    stats.observe_prompt(PromptTokens(hit=4, tail=1), group=0)
    stats.observe_prompt(PromptTokens(first=8, tail=1), group=None)
    stats.observe_end(RowTime(1.0, 0, 5), 0, 1.0)
    stats.observe_end(RowTime(1.0, 1, 6), None, 2.0)
    assert stats.prompt == PromptTokens(hit=4, first=8, tail=2)
    assert stats.hit_rate == 4 / 14
    assert (stats.groups[0].num_rows, stats.groups[0].num_output_tokens) == (1, 5)


@pytest.mark.parametrize(("ends", "share"), [([1.0, 2.0, 4.0], 0.5), ([4.0], 1.0), ([1.0] * 19 + [2.0], 0.5)])
def test_tail_share(ends: list[float], share: float) -> None:
    stats = make_stats()
    stats.observe_prompt(PromptTokens(tail=1), None)
    for end in ends:
        stats.observe_end(RowTime(1.0, 0, 1), None, end)
    assert stats.tail_share() == pytest.approx(share)


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
