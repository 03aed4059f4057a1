"""Stopwatch: how long the parts of a run took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

Part = Literal["inspect", "tokenise", "load", "plan", "run", "write"]  # in the order of a run


class Stopwatch:
    """Measures seconds by part. The parts are fixed, since each one is a column of `stats/job.parquet`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._part_starts: dict[str, float] = {}  # of the parts that are being timed
        self._earlier = 0.0  # seconds of earlier sessions

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time a block of code; the times of a part that is timed twice are added."""
        self._part_starts[name] = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - self._part_starts.pop(name))

    def resume_from(self, seconds: Mapping[str, float]) -> None:
        """Add the result of `seconds` of an earlier session."""
        self._earlier += seconds["total"]
        for name, value in seconds.items():
            if name != "total":
                self._add(name, value)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part, 0 for one that was not timed, and the total. Running parts count too."""
        now = time.perf_counter()
        seconds = {**self._seconds, **{part: 0.0 for part in get_args(Part) if part not in self._seconds}}
        for name, start in self._part_starts.items():
            seconds[name] += now - start
        return {**seconds, "total": self._earlier + now - self._start}

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
