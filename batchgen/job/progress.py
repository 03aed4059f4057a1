"""Progress: the bar on a terminal, or a line in the log every 30 seconds where there is no terminal."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from batchgen.console import progress_bar
from batchgen.log import event
from batchgen.stats.counters import RunStats

_REDRAW_SECONDS = 0.2
_LOG_SECONDS = 30.0  # between lines of the log, where there is no bar

log = logging.getLogger("batchgen")


class Progress:
    """Shows rows done, tokens per second, hit rate and KV use."""

    def __init__(self, num_rows: int, num_done: int, stats: RunStats, num_blocks: int, *, quiet: bool) -> None:
        self._stats = stats
        self._num_blocks = num_blocks
        self._num_rows = num_rows
        self._num_done = num_done
        self._bar = progress_bar(None, total=num_rows, initial=num_done, quiet=quiet)
        self._begin = self._shown = self._log_finished = time.perf_counter()
        self._earlier_tokens = stats.num_sampled_tokens  # of earlier sessions
        self._has_token = False  # of this one

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def step_done(self, num_ended: int) -> None:
        """Show that a step has run in which `num_ended` rows ended; redraws a few times a second at most."""
        self._num_done += num_ended
        if not self._has_token and self._stats.num_sampled_tokens > self._earlier_tokens:
            self._has_token = True
            log.info("the first token is sampled", extra=event("first_token"))
        self._bar.update(num_ended)
        now = time.perf_counter()
        if self._bar.disable and now - self._log_finished >= _LOG_SECONDS:
            self._log_finished = now
            self._log_progress(now)
        step = self._stats.last_step
        if self._bar.disable or step is None or now - self._shown < _REDRAW_SECONDS:
            return
        self._shown = now
        self._bar.set_postfix_str(
            f"{self._rate(now):,.0f} tok/s, "
            f"hits {100 * (self._stats.hit_rate or 0):.0f} %, KV {100 * step.num_used_blocks / self._num_blocks:.0f} %"
        )

    def _log_progress(self, now: float) -> None:
        rate = self._rate(now)
        figures = event(
            "progress", done=self._num_done, rows=self._num_rows, tokens_per_second=rate, hit_rate=self._stats.hit_rate
        )
        log.info("%d of %d rows, %.0f tokens/s", self._num_done, self._num_rows, rate, extra=figures)

    def _rate(self, now: float) -> float:
        """Return the tokens per second of this session."""
        return (self._stats.num_sampled_tokens - self._earlier_tokens) / (now - self._begin)
