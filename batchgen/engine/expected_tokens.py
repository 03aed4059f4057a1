"""ExpectedTokens: how long completions get, learnt from those that ended. Knows lengths only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

_FIRST_GUESS = 256  # tokens, until enough rows have ended
_ENOUGH = 32  # rows


class ExpectedTokens:
    """The output length that admission expects of a row, in tokens."""

    def __init__(self, fixed: int | None = None) -> None:
        self._is_fixed = fixed is not None
        self._lengths: list[int] = []  # of finished rows
        self._guess = fixed or _FIRST_GUESS
        self._sorted: Counts = np.empty(0, np.int64)
        self._sums: Counts = np.empty(0, np.int64)  # [i] of all sorted lengths from i on

    @property
    def value(self) -> int:
        """Of a row that has generated nothing yet."""
        return int(self.left([0])[0])

    def observe(self, num_output_tokens: int) -> None:
        """A row ended with this many tokens."""
        if self._is_fixed:
            return
        self._lengths.append(num_output_tokens)
        if len(self._lengths) % _ENOUGH == 0:
            self._sorted = np.sort(np.array(self._lengths, np.int64))
            self._sums = np.append(np.cumsum(self._sorted[::-1])[::-1], 0)

    def left(self, num_generated: Sequence[int]) -> Counts:
        """For rows that have generated so many tokens, how many more are expected; at least one.

        That is the mean over the finished rows that were longer. A row longer than all of them is expected to come to
        twice its length.
        """
        so_far = np.asarray(num_generated, np.int64)
        if not len(self._sorted):
            return np.maximum(self._guess - so_far, 1)
        first_longer = np.searchsorted(self._sorted, so_far, side="right")
        num_longer = len(self._sorted) - first_longer
        mean = -(-self._sums[first_longer] // np.maximum(num_longer, 1))
        return np.maximum(np.where(num_longer > 0, mean - so_far, so_far), 1)
