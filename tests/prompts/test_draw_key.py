"""Draw keys of rows."""

from __future__ import annotations

from batchgen.prompts.prompt import draw_key


def test_draw_key_depends_on_seed_and_row() -> None:
    assert len({draw_key(0, b"a"), draw_key(1, b"a"), draw_key(0, b"b")}) == 3
    assert draw_key(0, b"a") == draw_key(0, b"a")
    assert 0 <= draw_key(2**63 - 1, b"a" * 16) < 2**64
