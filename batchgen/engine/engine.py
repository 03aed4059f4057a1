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
    """A step under way."""

    def outcomes(self) -> Sequence[Outcome]:
        """For every sampled request in order: the next token, or the error that ends it. Waits for them."""


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step whose outcomes were there as soon as it had begun."""

    known: Sequence[Outcome]

    def outcomes(self) -> Sequence[Outcome]:
        return self.known


class Runner(Protocol):
    """Computes steps, in the order in which they begin; `ModelRunner` with a real model."""

    @property
    def lag(self) -> int:
        """How many steps may be under way while the next one is scheduled: 0 or 1."""

    def start(self, step: SchedulerOutput) -> InFlight:
        """Begin to compute a step. Raises OutOfMemory, and then nothing of the step was computed.

        With a lag, some of the tokens it is to compute may be pending (`Request.num_pending_tokens`): the step before,
        which is still under way, samples them.
        """


class StepInFlight(NamedTuple):
    """A step and where its outcomes will be."""

    step: SchedulerOutput
    in_flight: InFlight


class Engine:
    """Runs requests in the order given, many at a time."""

    def __init__(self, scheduler: Scheduler, runner: Runner, stats: RunStats) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.stats = stats
        self._observer = Observer(scheduler, stats)
        self._in_flight: StepInFlight | None = None
        self._ran_out_of_memory = False

    def run(self, requests: Iterable[Request]) -> Iterator[list[Request]]:
        """Take requests as they are needed; yields after every step those that ended, each exactly once."""
        source = iter(requests)
        self._observer.begin()
        while self._fill(source):
            yield self.step()

    def step(self) -> list[Request]:
        """Begin one forward of the model over everything that fits; returns the requests that ended.

        Where the runner lags, those are the ones of the forward before, whose results come over while this one is
        computed; where the next step depends on this one's results, they are waited for. Where the device runs out of
        memory the step is undone, and the next one is half as large. Raises CapacityError when it cannot be smaller.
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
        """None if there is nothing to do, or no memory to do it."""
        if step.is_idle:
            return None
        try:
            in_flight = self.runner.start(step)
        except OutOfMemory:
            return None
        self._observer.step_begun(step)
        return StepInFlight(step, in_flight)

    def _collect(self) -> list[Request]:
        """Wait for the step under way, if there is one; returns the requests that ended with it."""
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
        """Once loudly: how far the steps shrink is of no interest, that they do is."""
        if not self.scheduler.max_batched_tokens:
            return  # that is the end, and the scheduler says so
        level = logging.DEBUG if self._ran_out_of_memory else logging.WARNING
        self._ran_out_of_memory = True
        log.log(
            level,
            "the device ran out of memory in a step of %d tokens; nothing is lost: the run goes on, slower, in steps "
            "of at most %d tokens and %d rows; a lower engine.memory_fraction or engine.max_batched_tokens avoids it",
            step.num_tokens,
            self.scheduler.max_batched_tokens,
            self.scheduler.max_num_seqs,
        )

    def _fill(self, source: Iterator[Request]) -> bool:
        """Keep a step's worth of requests waiting; False when nothing is left to do."""
        while len(self.scheduler.waiting) < self.scheduler.max_num_seqs:
            request = next(source, None)
            if request is None:
                break
            self.scheduler.add(request)
        return bool(self.scheduler.waiting or self.scheduler.running or self._in_flight)
