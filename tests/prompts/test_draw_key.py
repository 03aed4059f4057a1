"""Draw keys of rows."""

from __future__ import annotations

from batchgen.prompts.prompt import rng_key


def test_draw_key_depends_on_seed_and_row() -> None:
    assert len({rng_key(0, b"a"), rng_key(1, b"a"), rng_key(0, b"b")}) == 3
    assert rng_key(0, b"a") == rng_key(0, b"a")
    assert 0 <= rng_key(2**63 - 1, b"a" * 16) < 2**64
