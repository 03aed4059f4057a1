"""ExpectedTokens: how long completions get, learnt from those that ended. Knows lengths only."""

from __future__ import annotations

_FIRST_GUESS = 256  # tokens, until enough rows have ended
_ENOUGH = 32  # rows
_QUANTILE = 0.95  # reserving more wastes the pool, less preempts


class ExpectedTokens:
    """The output length that admission reserves for a row, in tokens."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._counts: dict[int, int] = {}  # completion length -> finished rows
        self._num_finished = 0
        self.value = fixed or _FIRST_GUESS

    def observe(self, num_output_tokens: int) -> None:
        """A row ended with this many tokens."""
        if self._fixed is not None:
            return
        self._counts[num_output_tokens] = self._counts.get(num_output_tokens, 0) + 1
        self._num_finished += 1
        if self._num_finished >= _ENOUGH and self._num_finished % _ENOUGH == 0:
            self.value = self._quantile()

    def _quantile(self) -> int:
        rank = _QUANTILE * self._num_finished
        seen = 0
        for length in sorted(self._counts):
            seen += self._counts[length]
            if seen >= rank:
                return max(length, 1)
        raise AssertionError("the counts do not add up")
