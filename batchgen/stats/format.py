"""Figures in words, for the terminal and the page. Knows numbers; knows nothing of what they measure."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """A dash where there is no figure."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rate(tokens_per_second: float | None) -> str:
    """A dash where there is no figure."""
    return "-" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"


def nonbreaking(text: str) -> str:
    """The same with no line break between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def count(number: int, noun: str) -> str:
    """1 row, 2,000 rows; for nouns that take an s."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def duration(seconds: float) -> str:
    """0.3 s, 68 s, 5 min 3 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
