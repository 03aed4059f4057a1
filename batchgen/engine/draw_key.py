"""The key of a row's random draws, from the job's seed and the row's own key. Knows no generator."""

from __future__ import annotations

from hashlib import blake2b


def draw_key(seed: int, row_key: bytes) -> int:
    """64 bits: seed and key hashed together."""
    return int.from_bytes(blake2b(row_key, digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")
