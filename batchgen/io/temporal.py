"""Dates, times, timestamps, durations and intervals of Arrow as Python values with an ISO 8601 text.

They are made from Arrow's integers alone, so that they depend on no other package (pandas, pytz), on no time zone
database and on no platform, keep nanoseconds, and have any year. Knows no columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

UNIT_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SECOND = 10**9
_DAY = 86_400 * _SECOND
_EPOCH = datetime(1970, 1, 1)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400  # the Gregorian calendar repeats itself


class MonthDayNano(NamedTuple):
    """An interval, each part with its own sign. pyarrow's class of that name cannot be pickled."""

    months: int
    days: int
    nanoseconds: int


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Temporal:
    """A time, timestamp, duration or interval, or a date in a year that Python lacks. Printed, it is ISO 8601 text.

    Attributes and methods that it lacks itself are those of `rounded`, for example `year` and `strftime`.
    """

    count: int | tuple[int, ...]  # nanoseconds; of a date, days; of an interval, months, days and nanoseconds
    text: str = field(compare=False)
    kind: str = field(compare=False)  # "date", "time", "timestamp", "duration" or "interval"
    rounded: Any = field(compare=False)  # Python's own value, rounded down to microseconds; None: Python has none
    is_exact: bool = field(compare=False)  # whether `rounded` is the whole value

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.rounded) if self.is_exact else self.text

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "rounded"), name)

    def __sub__(self, other: object) -> Temporal:
        if isinstance(other, Temporal) and isinstance(self.count, int) and isinstance(other.count, int):
            return duration(self.count - other.count, "ns")
        return NotImplemented

    def isoformat(self) -> str:
        """Return the text."""
        return self.text

    @property
    def key(self) -> tuple[str, str]:
        """The type and the text that identify the value among ids (see `prompts/prompt.py`)."""
        return (type(self.rounded).__name__, repr(self.rounded)) if self.is_exact else (self.kind, self.text)


def date_of(days: int) -> date | Temporal:
    """Return the date that is `days` after 1970-01-01."""
    if _is_in_python(days):
        return date.fromordinal(_EPOCH_ORDINAL + days)
    return Temporal(days, date_text(days), "date", None, is_exact=False)


def time_of_day(value: int, unit: str) -> Temporal:
    """Return the time of day that is `value` units after midnight."""
    nanoseconds = value * UNIT_NANOSECONDS[unit]
    rounded = (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).time()
    return Temporal(nanoseconds, _time_text(nanoseconds), "time", rounded, is_exact=nanoseconds % 1000 == 0)


def timestamp(value: int, unit: str, *, is_utc: bool) -> Temporal:
    """Return the time that is `value` units after 1970-01-01, as a local time without a time zone or as one in UTC."""
    nanoseconds = value * UNIT_NANOSECONDS[unit]
    days, in_day = divmod(nanoseconds, _DAY)
    text = f"{date_text(days)}T{_time_text(in_day)}{'Z' if is_utc else ''}"
    rounded = _EPOCH + timedelta(microseconds=nanoseconds // 1000) if _is_in_python(days) else None
    is_exact = rounded is not None and nanoseconds % 1000 == 0 and not is_utc
    return Temporal(nanoseconds, text, "timestamp", rounded, is_exact)


def duration(value: int, unit: str) -> Temporal:
    """Return a duration; Python has those of less than a thousand million days."""
    nanoseconds = value * UNIT_NANOSECONDS[unit]
    text = f"{'-' if nanoseconds < 0 else ''}{_duration_text(abs(nanoseconds))}"
    try:
        rounded = timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        rounded = None
    return Temporal(nanoseconds, text, "duration", rounded, rounded is not None and nanoseconds % 1000 == 0)


def interval(months: int, days: int, nanoseconds: int) -> Temporal:
    """Return an interval."""
    value = MonthDayNano(months, days, nanoseconds)
    date_part = f"{months}M" * (months != 0) + f"{days}D" * (days != 0)
    seconds = f"{'-' if nanoseconds < 0 else ''}{_seconds_text(abs(nanoseconds))}S"
    text = f"P{date_part}" if date_part and not nanoseconds else f"P{date_part}T{seconds}"
    return Temporal(value, text, "interval", value, is_exact=True)


def date_text(days: int) -> str:
    """Return the date that is `days` after 1970-01-01 as YYYY-MM-DD; years have more digits beyond 9999."""
    cycles, day = divmod(days + _EPOCH_ORDINAL - 1, _CYCLE_DAYS)
    in_cycle = date.fromordinal(day + 1)
    year = in_cycle.year + cycles * _CYCLE_YEARS
    return f"{year:0{4 if year >= 0 else 5}d}-{in_cycle.month:02d}-{in_cycle.day:02d}"


def _is_in_python(days: int) -> bool:
    return 1 <= _EPOCH_ORDINAL + days <= date.max.toordinal()


def _time_text(nanoseconds: int) -> str:
    minutes, rest = divmod(nanoseconds, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest // _SECOND:02d}{_fraction(rest % _SECOND)}"


def _duration_text(nanoseconds: int) -> str:
    days, in_day = divmod(nanoseconds, _DAY)
    minutes, rest = divmod(in_day, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    parts = f"{hours}H" * (hours > 0) + f"{minutes}M" * (minutes > 0) + f"{_seconds_text(rest)}S" * (rest > 0)
    if days:
        return f"P{days}D" + (f"T{parts}" if parts else "")
    return f"PT{parts or '0S'}"


def _seconds_text(nanoseconds: int) -> str:
    return f"{nanoseconds // _SECOND}{_fraction(nanoseconds % _SECOND)}"


def _fraction(nanoseconds: int) -> str:
    """Return the digits behind the second that count: none, six or nine."""
    if not nanoseconds:
        return ""
    return f".{nanoseconds // 1000:06d}" if nanoseconds % 1000 == 0 else f".{nanoseconds:09d}"
