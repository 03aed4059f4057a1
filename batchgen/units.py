"""Numbers of bytes as text, for messages of every room. Knows numbers; knows nothing of what they measure."""

from __future__ import annotations


def format_gib(num_bytes: float) -> str:
    """Return `1.50 GiB`."""
    return f"{num_bytes / 2**30:.2f} GiB"


def format_mib(num_bytes: float) -> str:
    """Return `1.5 MiB`."""
    return f"{num_bytes / 2**20:.1f} MiB"
