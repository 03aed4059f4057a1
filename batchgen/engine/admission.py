"""Admission: how many blocks the running rows are expected to hold at their peak. Decides nothing; plain NumPy.

ExpectedTokens learns the length of completions from finished rows; Reservation converts it to blocks. Rows end at
different times, and each releases its own blocks when it ends, so the peak is below the sum of what every row holds at
its own end. Usage grows until a row ends, so the peak is at the end of some row. With rows sorted by the number of
tokens that they are still expected to generate, the longest first,

    peak = shared blocks + max over k of (own blocks of rows 1..k when row k ends)

(the estimate of the Past-Future scheduler, arXiv 2507.10150, which samples the lengths where this takes their mean).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchgen.engine.request import Request
from batchgen.engine.request_blocks import FoundBlocks, RequestBlocks


class Reservation:
    """The blocks that the running rows, and those about to be admitted, are expected to need."""

    def __init__(self, blocks: RequestBlocks, expected: ExpectedTokens) -> None:
        self._blocks = blocks
        self._expected = expected
        self._rows: list[Request] = []
        self._num_shared: list[int] = []  # leading blocks of each row that stay when it ends
        self._num_common = blocks.cache.pool.num_used  # blocks that stay whichever row ends

    def add(self, request: Request, found: FoundBlocks | None = None) -> None:
        """Add a running row, or one about to be admitted with the blocks that were `found` for it."""
        matched = found.matched if found is not None else []
        num_held = len(request.block_table) or len(matched)
        num_shared = self._blocks.num_shared(request, len(matched))
        num_own = max(num_held - num_shared, 0) - self._blocks.writes_to_shared(request)
        num_to_come = max(num_shared - num_held, 0) + sum(map(self._blocks.cache.is_idle, matched))
        self._num_common += num_to_come - num_own
        self._rows.append(request)
        self._num_shared.append(num_shared)

    def peak(self) -> int:
        """Return the largest number of blocks that is expected to be in use at once."""
        size = self._blocks.cache.block_size
        num_generated = [row.num_output_tokens for row in self._rows]
        room = np.array([row.max_tokens for row in self._rows]) - num_generated
        left = np.minimum(self._expected.left(num_generated), room)
        order = np.argsort(-left, kind="stable")
        left = left[order]
        # The last token is never an input, so its KV is never stored.
        stored = np.array([row.num_tokens - 1 for row in self._rows])[order]
        full = np.cumsum(stored // size - np.array(self._num_shared)[order])
        # [k, f]: how many of the first k + 1 rows have f tokens in their last, partially filled block.
        filled = np.cumsum(np.eye(size, dtype=np.int64)[stored % size], axis=0)
        growth = -(-(np.arange(size) + left[:, None]) // size)
        return int(self._num_common + (full + (filled * growth).sum(axis=1)).max())


Counts = npt.NDArray[np.int64]

_FIRST_GUESS = 256  # tokens; used until enough rows have finished
_ENOUGH = 32  # rows; the estimate is updated whenever that many more have finished


class ExpectedTokens:
    """The output length that admission expects of rows, in tokens; fixed, or learnt from finished rows."""

    def __init__(self, fixed: int | None = None) -> None:
        self._is_fixed = fixed is not None
        self._lengths: list[int] = []  # of finished rows
        self._guess = fixed or _FIRST_GUESS
        self._sorted: Counts = np.empty(0, np.int64)
        self._sums: Counts = np.empty(0, np.int64)  # [i]: sum of the sorted lengths from index i on

    @property
    def value(self) -> int:
        """Tokens expected of a row that has generated none yet."""
        return int(self.left([0])[0])

    def observe(self, num_output_tokens: int) -> None:
        """Record that a row finished with this many tokens."""
        if self._is_fixed:
            return
        self._lengths.append(num_output_tokens)
        if len(self._lengths) % _ENOUGH == 0:
            self._sorted = np.sort(np.array(self._lengths, np.int64))
            self._sums = np.append(np.cumsum(self._sorted[::-1])[::-1], 0)

    def left(self, num_generated: Sequence[int]) -> Counts:
        """Return how many more tokens are expected of rows that have generated this many; at least one.

        The expected length is the mean over the finished rows that are longer. A row longer than all of them is
        expected to reach twice its length.
        """
        so_far = np.asarray(num_generated, np.int64)
        if not len(self._sorted):
            return np.maximum(self._guess - so_far, 1)
        first_longer = np.searchsorted(self._sorted, so_far, side="right")
        num_longer = len(self._sorted) - first_longer
        mean = -(-self._sums[first_longer] // np.maximum(num_longer, 1))
        return np.maximum(np.where(num_longer > 0, mean - so_far, so_far), 1)
