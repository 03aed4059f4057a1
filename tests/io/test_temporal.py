"""Dates and times from Arrow's integers: their text, what Python has of them, and what identifies them."""

from __future__ import annotations

import pickle
from datetime import date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.io.temporal import Temporal, date_of, date_text, duration, interval, time_of_day, timestamp
from tests.examples import examples

DAY = 86_400
YEAR_99999 = 3_093_496_444_800  # seconds


def at(value: int, unit: str = "ns") -> Temporal:
    return timestamp(value, unit, is_utc=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (at(0), "1970-01-01T00:00:00"),
        (at(1), "1970-01-01T00:00:00.000000001"),
        (at(1_000), "1970-01-01T00:00:00.000001"),
        (at(500_000_000), "1970-01-01T00:00:00.500000"),
        (at(-1), "1969-12-31T23:59:59.999999999"),
        (at(1, "s"), "1970-01-01T00:00:01"),
        (at(YEAR_99999, "s"), "99999-01-01T00:00:00"),
        (at(-62_135_596_801, "s"), "0000-12-31T23:59:59"),
        (at(-62_167_219_201, "s"), "-0001-12-31T23:59:59"),
        (timestamp(1, "ms", is_utc=True), "1970-01-01T00:00:00.001000Z"),
        (time_of_day(86_399_999_999_999, "ns"), "23:59:59.999999999"),
        (time_of_day(3_600, "s"), "01:00:00"),
        (duration(0, "s"), "PT0S"),
        (duration(93_784_500, "ms"), "P1DT2H3M4.500000S"),
        (duration(-1, "ns"), "-PT0.000000001S"),
        (duration(2 * DAY, "s"), "P2D"),
        (duration(2**62, "s"), "P53375995583650DT7H45M4S"),
        (interval(14, -3, 1_500), "P14M-3DT0.000001500S"),
        (interval(0, 0, -1), "PT-0.000000001S"),
        (interval(0, 2, 0), "P2D"),
        (interval(0, 0, 0), "PT0S"),
        (date_of(date.max.toordinal() - 719_162), "10000-01-01"),
        (date_of(-719_163), "0000-12-31"),
    ],
    ids=str,
)
def test_text_is_iso_with_every_digit_that_counts(value: Temporal, text: str) -> None:
    assert (str(value), f"{value}", value.isoformat()) == (text, text, text)


@given(moment=st.datetimes().map(lambda moment: moment.replace(fold=0)))
@examples(200)
def test_what_python_can_hold_prints_and_counts_as_python_does(moment: datetime) -> None:
    count = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    value = at(count, "us")
    assert str(value) == moment.isoformat()
    assert (repr(value), value.key) == (repr(moment), ("datetime", repr(moment)))
    assert (value.year, value.microsecond, value.strftime("%d.%m.")) == (
        moment.year, moment.microsecond, moment.strftime("%d.%m."),
    )  # fmt: skip
    assert at(count * 1000) == value
    assert at(count * 1000 + 1) > value
    assert str(at(count * 1000 + 1))[:19] == str(value)[:19]


@given(day=st.dates())
@examples(100)
def test_dates_are_those_of_python_in_its_years(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    assert (date_of(days), date_text(days)) == (day, day.isoformat())


@given(days=st.integers(-(2**31), 2**31 - 1))
@examples(200)
def test_the_calendar_repeats_itself_every_400_years(days: int) -> None:
    (year, rest), (later, same_rest) = (date_text(n).rsplit("-", 2)[::2] for n in (days, days + 146_097))
    assert (int(later), same_rest) == (int(year) + 400, rest)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (time_of_day(1_000, "ns"), ("time", repr(time(0, 0, 0, 1)))),
        (time_of_day(1, "ns"), ("time", "00:00:00.000000001")),
        (duration(1, "s"), ("timedelta", "datetime.timedelta(seconds=1)")),
        (duration(1, "ns"), ("duration", "PT0.000000001S")),
        (duration(2**62, "s"), ("duration", "P53375995583650DT7H45M4S")),
        (at(1), ("timestamp", "1970-01-01T00:00:00.000000001")),
        (timestamp(0, "us", is_utc=True), ("timestamp", "1970-01-01T00:00:00Z")),
        (at(YEAR_99999, "s"), ("timestamp", "99999-01-01T00:00:00")),
        (date_of(2_932_897), ("date", "10000-01-01")),
        (interval(1, 2, 3), ("MonthDayNano", "MonthDayNano(months=1, days=2, nanoseconds=3)")),
    ],
    ids=str,
)
def test_the_key_is_pythons_where_python_has_the_whole_value(value: Any, key: tuple[str, str]) -> None:
    assert value.key == key


def test_a_difference_keeps_nanoseconds() -> None:
    gap = at(DAY * 10**9 + 1) - at(0)
    assert (str(gap), gap.days) == ("P1DT0.000000001S", 1)


def test_what_python_lacks_has_no_attributes_of_python() -> None:
    assert not hasattr(at(YEAR_99999, "s"), "year")


def test_values_reach_worker_processes() -> None:
    for value in (at(1), at(YEAR_99999, "s"), duration(1, "s"), interval(1, 2, 3)):
        copy = pickle.loads(pickle.dumps(value))
        assert (copy, str(copy), copy.key) == (value, str(value), value.key)
