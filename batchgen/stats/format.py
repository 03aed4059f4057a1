"""Figures as text, for the terminal and the page. Knows numbers; knows nothing of what they measure."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """Format a share as "12.3 %", or as a dash where there is no figure."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rate(tokens_per_second: float | None) -> str:
    """Format a rate as "1,234 tokens/s", or as a dash where there is no figure."""
    return "-" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"


def nonbreaking(text: str) -> str:
    """Return the text with no line break possible between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def count(number: int, noun: str) -> str:
    """Format "1 row" or "2,000 rows"; the plural of `noun` must be formed with an s."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def duration(seconds: float) -> str:
    """Format "0.3 s", "68 s", "5 min 3 s" or "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
