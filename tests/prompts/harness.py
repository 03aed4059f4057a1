"""Encoders for worker processes. Imports no torch: every worker imports this file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import numpy as np

from batchgen.io.input.rows import Row
from batchgen.prompts.prompt import Prompts

BATCHES = [[Row(2 * n, f"x line {2 * n + 1}"), Row(2 * n + 1, f"x line {2 * n + 2}")] for n in range(12)]


class PidEncoder:
    """Encodes a row as its index and the process that encoded it."""

    def encode(self, rows: Sequence[Row]) -> Prompts:
        ids = [token for row in rows for token in (row.index, os.getpid())]
        return Prompts(np.array(ids, np.int32), np.full(len(rows), 2, np.int64))


class MaskEncoder(PidEncoder):
    """Encodes a row as its index and whether its process blocks SIGINT."""

    def encode(self, rows: Sequence[Row]) -> Prompts:
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        ids = [token for row in rows for token in (row.index, is_blocked)]
        return Prompts(np.array(ids, np.int32), np.full(len(rows), 2, np.int64))


class DyingEncoder(PidEncoder):
    """Dies at row 20, while the other worker has yet to send more than a pipe holds."""

    def encode(self, rows: Sequence[Row]) -> Prompts:
        if rows[0].index == 20:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if rows[0].index == 22:
            time.sleep(1.5)
            return Prompts(np.zeros(1 << 20, np.int32), np.full(len(rows), 1 << 19, np.int64))
        return super().encode(rows)
