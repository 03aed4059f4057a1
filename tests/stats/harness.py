"""Scripted jobs: the real plan, scheduler and counters, with a runner that computes nothing. Tokens are characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.engine import CompletedStep, Engine
from batchgen.engine.request import Request, SampledToken
from batchgen.engine.step import SchedulerOutput
from batchgen.plan.groups import prefix_groups
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from batchgen.stats.artifact import RunArtifact
from batchgen.stats.counters import RunStats
from batchgen.stats.prompt_tokens import PromptAccount
from batchgen.stats.report import ENVIRONMENT, PlannedFigures, RowCounts, RunReport, make_report
from batchgen.stats.tables import GroupPrefix, groups_table, steps_table

SECONDS = {"inspect": 0.5, "tokenise": 1.0, "load": 2.0, "plan": 0.5, "run": 60.0, "write": 1.0, "total": 66.0}


class IdleRunner:
    """A runner that gives token 7 to every sampled request."""

    lag = 0

    def start(self, step: SchedulerOutput) -> CompletedStep:
        return CompletedStep([SampledToken(7)] * len(step.sampled_requests))


@dataclass(frozen=True)
class ScriptedRun:
    """The plan, the counters and the report of a scripted job."""

    plan: Plan
    stats: RunStats
    report: RunReport

    def artifact(self) -> RunArtifact:
        engine = {"block_size": self.report.block_size, "num_blocks": self.report.num_blocks, "prefix_cache": True}
        sections: dict[str, Any] = {
            "model": {"path": "some/model"},
            "output": {"path": "/data/out/night-1"},
            "engine": engine,
            "on_error": "continue",
        }
        prefixes = [GroupPrefix(10 * group, 4) for group in range(len(self.stats.groups))]
        return RunArtifact(
            self.report,
            groups_table(self.stats.groups, prefixes.__getitem__),
            steps_table(self.stats.log),
            {"job": sections, "sources": {"model.path": "job", "engine.num_blocks": "--set"}},
        )


def run_script(
    prompts: Sequence[str],
    *,
    max_tokens: int = 8,
    block_size: int = 4,
    num_blocks: int = 1000,
    max_num_seqs: int = 8,
    max_batched_tokens: int = 512,
    expected_tokens: int | None = None,
    order: str = "prefix",
) -> ScriptedRun:
    """Run all prompts to their end, each with exactly `max_tokens` tokens of output."""
    by_prefix = order == "prefix"
    store = PackedTokens.pack([np.frombuffer(prompt.encode(), np.uint8) for prompt in prompts])
    limits = [max_tokens] * len(prompts)
    plan = make_plan(
        store, range(len(prompts)), limits, block_size=block_size, max_num_seqs=max_num_seqs, by_prefix=by_prefix
    )
    settings = EngineSettings(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        expected_tokens=expected_tokens,
        prefix_cache=True,
        max_model_len=1024,
        by_prefix=by_prefix,
    )
    stats, rows = RunStats(block_size, settings.max_model_len), RowCounts()
    engine = Engine(make_scheduler(settings), IdleRunner(), stats)
    rows.num_ok = sum(len(finished) for finished in engine.run(_requests(store, plan, max_tokens)))
    planned = PlannedFigures(plan.num_unique_tokens, plan.hit_ceiling, plan.ceilings, num_blocks, "engine.num_blocks")
    report = make_report(
        rows,
        stats,
        planned,
        started="2026-01-02T03:04:05",
        visiting_order=order,
        seconds=SECONDS,
        environment=dict.fromkeys(ENVIRONMENT, "1.0"),
    )
    return ScriptedRun(plan, stats, report)


def _requests(store: PackedTokens, plan: Plan, max_tokens: int) -> list[Request]:
    group_of = {
        int(position): number
        for number, group in enumerate(prefix_groups(plan.depth_first.shared[:-1] // 4))
        for position in plan.depth_first.positions[group.start : group.stop]
    }
    return [
        Request(
            int(position),
            store[position],
            SamplingParams(),
            rng_key=0,
            max_tokens=max_tokens,
            shared_with_next=None if plan.shared_with_next is None else int(plan.shared_with_next[visit_index]),
            account=PromptAccount(num_seen_tokens=int(plan.seen[visit_index]), group=group_of.get(int(position))),
        )
        for visit_index, position in enumerate(plan.order)
    ]
