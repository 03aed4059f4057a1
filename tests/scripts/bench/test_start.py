"""The parts of a start are read from the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from scripts.bench.start import seconds_by_event


def line(event: str, second: float) -> str:
    return json.dumps({"event": event, "time": datetime.fromtimestamp(second, UTC).isoformat(timespec="milliseconds")})


def test_each_part_lasts_from_the_event_before() -> None:
    lines = [line("job_started", 12.5), line("message", 13.0), line("model_inspected", 14.0), line("first_token", 20.0)]
    assert seconds_by_event(10.0, lines) == pytest.approx(
        {"job_started": 2.5, "model_inspected": 1.5, "first_token": 6.0}
    )
