"""Engine: the loop. The scheduler decides, the runner computes, the observer counts; the engine only calls them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchgen.engine.observer import Observer
from batchgen.engine.request import Outcome, Request
from batchgen.engine.scheduler import Scheduler
from batchgen.engine.step import OutOfMemory, SchedulerOutput
from batchgen.stats.counters import RunStats

log = logging.getLogger("batchgen")


class InFlight(Protocol):
    """A step that has been started."""

    def outcomes(self) -> Sequence[Outcome]:
        """Wait for the step; return, for every sampled request in order, the next token or the error that ends it."""


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step whose outcomes were known when it was started."""

    known: Sequence[Outcome]

    def outcomes(self) -> Sequence[Outcome]:
        return self.known


class Runner(Protocol):
    """Computes steps in the order in which they are started. `ModelRunner` is the one with a real model."""

    @property
    def lag(self) -> int:
        """How many steps may be in flight while the next one is scheduled: 0 or 1."""

    def start(self, step: SchedulerOutput) -> InFlight:
        """Start to compute a step. Raises OutOfMemory, in which case nothing of the step was computed.

        With a lag of 1 some of its input tokens may be pending (`Request.num_pending_tokens`): the step before, which
        is still in flight, samples them.
        """


class StepInFlight(NamedTuple):
    """A step and the handle that will give its outcomes."""

    step: SchedulerOutput
    in_flight: InFlight


class Engine:
    """Runs requests in the given order, many at a time."""

    def __init__(self, scheduler: Scheduler, runner: Runner, stats: RunStats) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.stats = stats
        self._observer = Observer(scheduler, stats)
        self._in_flight: StepInFlight | None = None
        self._ran_out_of_memory = False

    def run(self, requests: Iterable[Request]) -> Iterator[list[Request]]:
        """Draw requests as they are needed; yield after every step those that finished, each exactly once."""
        source = iter(requests)
        self._observer.begin()
        while self._fill(source):
            yield self.step()

    def step(self) -> list[Request]:
        """Start one forward of the model over everything that fits; return the requests that finished.

        If the runner lags, those are the requests of the forward before, whose outcomes are copied to the host while
        this one is computed; if the next step depends on this one's outcomes, they are waited for. If the device runs
        out of memory the step is rolled back and the next one is half as large. Raises CapacityError when it cannot be
        smaller.
        """
        self._observer.begin_step()
        step = self.scheduler.schedule()
        begun = self._begin(step)
        finished = self._collect()
        self._in_flight = begun
        if begun is None and not step.is_idle:
            self.scheduler.rollback(step)
            self._warn_smaller_steps(step)
        elif self.runner.lag == 0 or step.needs_results:
            finished += self._collect()
        else:
            self.scheduler.mark_pending(step)
        return finished

    def _begin(self, step: SchedulerOutput) -> StepInFlight | None:
        """Start a step; return None if it is idle or the device has no memory for it."""
        if step.is_idle:
            return None
        try:
            in_flight = self.runner.start(step)
        except OutOfMemory:
            return None
        self._observer.step_begun(step)
        return StepInFlight(step, in_flight)

    def _collect(self) -> list[Request]:
        """Wait for the step in flight, if any; return the requests that finished with it."""
        if self._in_flight is None:
            return []
        step, in_flight = self._in_flight
        self._in_flight = None
        outcomes = in_flight.outcomes()
        self._observer.step_done(step)
        finished = self.scheduler.update(step, outcomes)
        self._observer.rows_done(finished)
        return finished

    def _warn_smaller_steps(self, step: SchedulerOutput) -> None:
        """Log that the steps become smaller: as a warning the first time, later at debug level."""
        if not self.scheduler.max_batched_tokens:
            return  # the scheduler raises CapacityError next
        level = logging.DEBUG if self._ran_out_of_memory else logging.WARNING
        self._ran_out_of_memory = True
        log.log(
            level,
            "the device ran out of memory in a step of %d tokens; no row is lost: the run continues, more slowly, "
            "with at most %d tokens and %d rows a step; to avoid it lower engine.memory_fraction or "
            "engine.max_batched_tokens",
            step.num_tokens,
            self.scheduler.max_batched_tokens,
            self.scheduler.max_num_seqs,
        )

    def _fill(self, source: Iterator[Request]) -> bool:
        """Queue requests until there are enough for a step; return False when nothing is left to do."""
        while len(self.scheduler.waiting) < self.scheduler.max_num_seqs:
            request = next(source, None)
            if request is None:
                break
            self.scheduler.add(request)
        return bool(self.scheduler.waiting or self.scheduler.running or self._in_flight)
