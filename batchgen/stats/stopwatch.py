"""Stopwatch: how long the parts of a run took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Part = Literal["inspect", "tokenise", "load", "plan", "run", "write"]  # in the order of a run


class Stopwatch:
    """Seconds by part, in the order the parts were first timed. The parts are fixed: each is a column of the stats."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time a block of code; a part timed twice is added up."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        """Every part, 0 for one that has not been, and the total since the start."""
        untimed = {part: 0.0 for part in get_args(Part) if part not in self._seconds}
        return {**self._seconds, **untimed, "total": time.perf_counter() - self._begin}
