"""Pass 2: the planned prompts through the model. Knows how a row becomes a request and a request an output."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from transformers import PreTrainedModel

from batchgen.engine.build import EngineSettings, assemble_engine, measure_steps
from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.job.interrupt import Interrupt
from batchgen.job.outputs import Outputs
from batchgen.job.pool import bytes_for_steps, fit_pool, plan_rows
from batchgen.job.progress import Progress
from batchgen.job.results import Results
from batchgen.job.target import Target
from batchgen.log import event
from batchgen.models.attention import IMPLEMENTATION, Backend, make_backend
from batchgen.models.backends import warm_up
from batchgen.models.device import available_memory, can_measure_memory, keep_freed_memory
from batchgen.models.fuse import fuse
from batchgen.models.kv_cache import PoolSize
from batchgen.models.load import load_weights
from batchgen.models.threads import limit_threads
from batchgen.plan.groups import prefix_groups
from batchgen.plan.plan import Plan
from batchgen.plan.token_store import Positions
from batchgen.prompts.tokenise import BadRows, TokenisedRows
from batchgen.sampling_params import SamplingParams
from batchgen.spec.load import Job
from batchgen.stats.report import PlannedFigures
from batchgen.stats.resumed import CommittedRows
from batchgen.stats.stopwatch import Stopwatch
from batchgen.stats.tables import GroupPrefix

log = logging.getLogger("batchgen")


class RowGroups:
    """The prefix groups of a plan, and the one that each prompt is counted in, whatever the visiting order."""

    def __init__(self, plan: Plan, num_prompts: int, block_size: int) -> None:
        self.groups = prefix_groups(plan.depth_first.shared[:-1] // block_size)
        self._depth_first = plan.depth_first.positions
        self._of_position = np.full(num_prompts, -1, np.int32)
        for number in range(len(self.groups)):
            self._of_position[self.positions(number)] = number

    def of(self, position: int) -> int | None:
        """The number of a prompt's group; None if it is in none."""
        number = int(self._of_position[position])
        return None if number < 0 else number

    def positions(self, number: int) -> Positions:
        """The prompts of a group."""
        group = self.groups[number]
        return self._depth_first[group.start : group.stop]


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything that pass 2 needs, ready to start."""

    target: Target
    rows: TokenisedRows
    plan: Plan
    groups: RowGroups
    pool: PoolSize
    engine: Engine
    outputs: Outputs

    def run(self, results: Results, interrupt: Interrupt, *, quiet: bool) -> None:
        """Run every planned row to its end; outputs go to `results` as they come.

        However it ends, the rows that finished are committed. Raises Interrupted after the step in which a signal came.
        """
        num_done, stats = results.counts.num_done, self.engine.stats
        results.resume_counters(stats)
        num_rows = num_done + len(self.plan.order)
        progress = Progress(num_rows, num_done, stats, self.pool.num_blocks, quiet=quiet)
        with interrupt.deferred(), results.committed_at_end(), progress:
            for finished in self.engine.run(self.requests()):
                num_done = results.counts.num_done
                for request in finished:
                    results.add(self.outputs.of(request), request.params.n)
                results.commit_if_due()
                progress.step_done(results.counts.num_done - num_done)
                if interrupt.is_requested:
                    break

    def figures(self, earlier: CommittedRows) -> PlannedFigures:
        """What the plans of all sessions say, for the report: each of its own rows."""
        return PlannedFigures(
            num_unique_tokens=earlier.num_unique_tokens + self.plan.num_unique_tokens,
            hit_ceiling=earlier.hit_ceiling + self.plan.hit_ceiling,
            ceilings=self.plan.ceilings,
            num_blocks=self.pool.num_blocks,
            pool_reason=self.pool.reason,
        )

    def prefix_of(self, group: int) -> GroupPrefix:
        """What the report says of a prefix group."""
        positions = self.groups.positions(group)
        num_tokens = self.groups.groups[group].num_blocks * self.engine.scheduler.cache.block_size
        return GroupPrefix(self.rows.row_indices[int(positions.min())], num_tokens)

    def requests(self) -> Iterator[Request]:
        """The first sample of every row in visiting order, with the others, made when the engine wants them."""
        for visit_index, position in enumerate(self.plan.order):
            params = self.rows.sampling.params(position)
            first, *later = (self._request(visit_index, params, sample) for sample in range(params.n))
            first.later_samples = later
            for sample in later:  # what is known of the prompt is known for all of them
                sample.prompt_logprobs = first.prompt_logprobs
            yield first

    def _request(self, visit_index: int, params: SamplingParams, sample: int) -> Request:
        rows, plan, position = self.rows, self.plan, self.plan.order[visit_index]
        token_ids, num_seen = rows.store[position], int(plan.seen[visit_index])
        num_findable = num_seen if self.engine.scheduler.cache.enabled else 0
        ends = params.stop_token_ids | (frozenset() if params.ignore_eos else self.target.info.eos_token_ids)
        grammars, form = self.target.token_values.grammars, params.structured
        return Request(
            row_index=rows.row_indices[position],
            prompt_token_ids=token_ids,
            params=params,
            rng_key=rows.rng_key(position),
            max_tokens=int(rows.max_tokens[position]),
            shared_with_next=None if plan.shared_with_next is None else int(plan.shared_with_next[visit_index]),
            hit_ceiling=self._hit_ceiling(len(token_ids), num_findable, params),
            num_unique_tokens=len(token_ids) - num_seen,
            num_seen_tokens=num_findable,
            group=self.groups.of(position),
            end_token_ids=ends,
            stop_condition=self.outputs.stop_condition(params),
            constraint=None if form is None else grammars.constraint(form, ends),
            sample_index=sample,
        )

    def _hit_ceiling(self, num_prompt: int, num_seen: int, params: SamplingParams) -> int:
        """What `plan.limits.num_hit_blocks` says of one row, in tokens; in prefix order they add up to the plan's."""
        size = self.engine.scheduler.cache.block_size
        num_blocks = min(num_seen // size, (num_prompt - 1) // size)
        return 0 if params.prompt_logprobs is not None else num_blocks * size


class RowsToRun(BadRows, Protocol):
    """Which rows are left to run, and where bad ones go."""

    def left(self, row_indices: array[int]) -> Positions:
        """Their places in `row_indices`."""


def prepare_generation(
    job: Job, target: Target, rows: TokenisedRows, results: RowsToRun, watch: Stopwatch
) -> Generation | None:
    """Plan the rows that are not committed and load the model; None, and no weight is read, when no row is left to run.

    Rows whose prompt can never fit the KV pool go to `results`. Raises ModelError or CapacityError.
    """
    left = results.left(rows.row_indices)
    if not len(left):
        return None
    with watch.part("plan"):
        plan = plan_rows(job, target, rows, left)
        log.info("%d rows planned", len(left), extra=event("plan", rows=len(left), hit_ceiling=plan.hit_ceiling))
    if target.device.type == "cpu":
        limit_threads()
    backend, settings = make_backend(target.attention), _engine_settings(job, target)
    with watch.part("load"), warm_up(backend, target.layers[0], target.info.dtype):
        model = load_weights(target.info, job.spec.model, target.device, IMPLEMENTATION)
        if target.attention == "cpu":
            keep_freed_memory()
            fuse(model)
    with watch.part("plan"):
        for_steps = _bytes_for_steps(model, backend, settings, target, rows, len(plan.order))
        plan, pool = fit_pool(job, target, rows, plan, results, available_memory(target.device) - for_steps)
    settings = replace(settings, num_blocks=pool.num_blocks)
    engine = assemble_engine(model, target.layers, backend, target.info.unused_token_ids, settings)
    ready = event("weights_loaded", device=str(target.device), blocks=pool.num_blocks)
    log.info("the model is ready on %s, with %d KV blocks", target.device, pool.num_blocks, extra=ready)
    groups = RowGroups(plan, len(rows), job.spec.engine.block_size)
    outputs = Outputs(target.info.tokenizer, rows.locations, token_ids=job.spec.output.token_ids)
    return Generation(target, rows, plan, groups, pool, engine, outputs)


def _bytes_for_steps(
    model: PreTrainedModel,
    backend: Backend,
    settings: EngineSettings,
    target: Target,
    rows: TokenisedRows,
    num_rows: int,
) -> int:
    """Measured where that is possible, else by the formula that `plan` uses."""
    if not can_measure_memory(target.device):
        return bytes_for_steps(target, rows, num_rows)
    unused, params = target.info.unused_token_ids, rows.sampling.widest
    return measure_steps(model, target.layers, backend, unused, settings, params)


def _engine_settings(job: Job, target: Target) -> EngineSettings:
    """All but the number of blocks, which is known last."""
    engine = job.spec.engine
    return EngineSettings(
        num_blocks=1,
        block_size=engine.block_size,
        max_num_seqs=target.max_num_seqs,
        max_batched_tokens=target.max_batched_tokens,
        expected_tokens=engine.expected_tokens,
        prefix_cache=engine.prefix_cache,
        max_model_len=target.max_model_len,
        by_prefix=engine.order == "prefix",
        lag=1 if target.device.type == "cuda" else 0,
        replay_decodes=target.device.type == "cuda" and target.attention == "triton",
    )
