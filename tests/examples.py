"""How many examples a Hypothesis test tries: its own number in the profile `full`, a tenth of it in `fast`."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> settings:
    """Return settings for `number` examples, scaled by the profile: pytest --hypothesis-profile=fast."""
    return settings(max_examples=max(1, number * settings().max_examples // 100))
