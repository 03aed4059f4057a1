"""An engine whose model is replaced by a stand-in: scheduler, block pool, prefix cache and counters are the real ones.

Knows how such an engine is put together; knows no job and measures nothing.
"""

from __future__ import annotations

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.engine import CompletedStep, Engine, Runner
from batchgen.engine.request import SampledToken
from batchgen.engine.step import SchedulerOutput
from batchgen.stats.counters import RunStats


class StandIn:
    """A runner that computes nothing and samples token 0 for every row."""

    lag = 0

    def start(self, step: SchedulerOutput) -> CompletedStep:
        return CompletedStep([SampledToken(0)] * len(step.sampled_requests))


def make_engine(settings: EngineSettings, runner: Runner) -> Engine:
    """Build an engine around a runner of any kind."""
    return Engine(make_scheduler(settings), runner, RunStats(settings.block_size, settings.max_model_len))
