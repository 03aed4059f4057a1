"""Stopwatch: how long the parts of a run took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

Part = Literal["inspect", "tokenise", "load", "plan", "run", "write"]  # in the order of a run


class Stopwatch:
    """Seconds by part, in the order the parts were first timed. The parts are fixed: each is a column of the stats."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}  # parts that are being timed
        self._earlier = 0.0

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time a block of code; a part timed twice is added up."""
        self._begun[name] = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - self._begun.pop(name))

    def resume_from(self, seconds: Mapping[str, float]) -> None:
        """Add what `seconds` gave in an earlier session."""
        self._earlier += seconds["total"]
        for name, value in seconds.items():
            if name != "total":
                self._add(name, value)

    def seconds(self) -> dict[str, float]:
        """Every part, 0 for one that has not been, and the total since the start. What is being timed counts too."""
        now = time.perf_counter()
        seconds = {**self._seconds, **{part: 0.0 for part in get_args(Part) if part not in self._seconds}}
        for name, begin in self._begun.items():
            seconds[name] += now - begin
        return {**seconds, "total": self._earlier + now - self._begin}

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
