"""The bench of the plan plans the prompts that it names and leaves no token store behind."""

from __future__ import annotations

from pathlib import Path

from scripts.bench.plan import measure


def test_a_small_measurement(tmp_path: Path) -> None:
    figures = measure(2_000, "prefix", str(tmp_path))
    assert 2_000 * 100 < figures.tokens < 2_000 * 140  # 40 to 200 each
    assert set(figures.seconds) == set(figures.cpu_seconds) == set(figures.rss_anon)
    assert figures.rss_anon["plan"] > 2_000 * 20  # order, shared and seen alone
    assert list(tmp_path.iterdir()) == []
