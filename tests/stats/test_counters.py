"""Counters: two steps by hand."""

from __future__ import annotations

from batchgen.stats.counters import RunStats, StepStats


def step(used: int, empty: int, **changes: int | bool) -> StepStats:
    values = {
        "num_running": 2,
        "num_waiting": 0,
        "num_tokens": 3,
        "num_sampled": 2,
        "num_used_blocks": used,
        "num_idle_blocks": 0,
        "num_free_blocks": 1,
        "num_empty_slots": empty,
        "num_preempted": 0,
        "waits_for_blocks": False,
    }
    return StepStats(**{**values, **changes})  # type: ignore[arg-type]


def test_fragmentation_is_a_mean_over_time_and_a_peak() -> None:
    stats = RunStats(block_size=4)
    stats.observe_step(step(used=2, empty=2))  # 2 of 8 slots
    stats.observe_step(step(used=4, empty=2))  # 2 of 16
    assert stats.internal_fragmentation == 4 / 24
    assert stats.peak_internal_fragmentation == 0.25
    assert stats.peak_used_blocks == 4


def test_nothing_ran_means_no_figure() -> None:
    stats = RunStats(block_size=4)
    stats.observe_step(step(used=0, empty=0))
    assert stats.internal_fragmentation is None
    assert stats.peak_internal_fragmentation is None
    assert stats.hit_rate is None


def test_a_prompt_counts_once() -> None:
    stats = RunStats(block_size=4)
    stats.observe_admission(10, 4, 0, first=True)
    stats.observe_admission(10, 8, 2, first=False)
    assert (stats.num_prompt_tokens, stats.num_hit_tokens, stats.num_recomputed_tokens) == (10, 4, 2)
    assert stats.hit_rate == 0.4
