"""Progress: the bar that a person watches; nothing when stderr is no terminal, or when asked to be quiet."""

from __future__ import annotations

import time
from types import TracebackType

from tqdm import tqdm

from batchgen.stats.counters import RunStats

_REDRAW_SECONDS = 0.2


def rows_bar(what: str, *, quiet: bool) -> tqdm:
    """Rows done and rows a second, for work whose end is not known."""
    return tqdm(desc=what, unit="row", disable=True if quiet else None)


class Progress:
    """Rows done, tokens per second, hit rate and KV use."""

    def __init__(self, num_rows: int, num_done: int, stats: RunStats, num_blocks: int, *, quiet: bool) -> None:
        self._stats = stats
        self._num_blocks = num_blocks
        # None: tqdm finds out whether stderr is a terminal
        self._bar = tqdm(total=num_rows, initial=num_done, unit="row", disable=True if quiet else None)
        self._begin = self._shown = time.perf_counter()
        self._earlier_tokens = stats.num_sampled_tokens  # of earlier sessions

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def step_done(self, num_ended: int) -> None:
        """A step has run and this many rows ended in it; the figures change a few times a second at most."""
        self._bar.update(num_ended)
        now = time.perf_counter()
        step = self._stats.last_step
        if self._bar.disable or step is None or now - self._shown < _REDRAW_SECONDS:
            return
        self._shown = now
        self._bar.set_postfix_str(
            f"{(self._stats.num_sampled_tokens - self._earlier_tokens) / (now - self._begin):,.0f} tok/s, "
            f"hits {100 * (self._stats.hit_rate or 0):.0f} %, KV {100 * step.num_used_blocks / self._num_blocks:.0f} %"
        )
