"""Pass 2: run the planned prompts through the model. Knows how a prompt becomes a request and a request an output."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from transformers import PreTrainedModel

from batchgen.engine.build import EngineSettings, assemble_engine, measure_steps
from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.job.conditions import Conditions, RowConditions
from batchgen.job.interrupt import Interrupt
from batchgen.job.outputs import Outputs
from batchgen.job.pool import bytes_for_steps, fit_pool, plan_rows
from batchgen.job.progress import Progress
from batchgen.job.results import Results
from batchgen.job.run_config import RunConfig
from batchgen.log import event
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.backends import Backend, make_backend, warm_up
from batchgen.models.device import available_memory, can_measure_memory, disable_malloc_trimming
from batchgen.models.fuse import fuse
from batchgen.models.kv_cache import PoolSize
from batchgen.models.load import load_weights
from batchgen.models.threads import limit_threads
from batchgen.plan.groups import prefix_groups
from batchgen.plan.plan import Plan
from batchgen.plan.token_store import Positions
from batchgen.prompts.tokenise import BadRows, TokenisedRows
from batchgen.sampling_params import SamplingParams
from batchgen.stats.prompt_tokens import PromptAccount
from batchgen.stats.report import PlannedFigures
from batchgen.stats.resumed import CommittedRows
from batchgen.stats.stopwatch import Stopwatch
from batchgen.stats.tables import GroupPrefix

log = logging.getLogger("batchgen")


class RowGroups:
    """The prefix groups of a plan, and the group of each prompt, independent of the visiting order."""

    def __init__(self, plan: Plan, num_prompts: int, block_size: int) -> None:
        self.groups = prefix_groups(plan.depth_first.shared[:-1] // block_size)
        self._depth_first = plan.depth_first.positions
        self._of_position = np.full(num_prompts, -1, np.int32)
        for number in range(len(self.groups)):
            self._of_position[self.positions(number)] = number

    def of(self, position: int) -> int | None:
        """Return the number of the group that a prompt belongs to; None if it belongs to none."""
        number = int(self._of_position[position])
        return None if number < 0 else number

    def positions(self, number: int) -> Positions:
        """Return the positions of a group's prompts."""
        group = self.groups[number]
        return self._depth_first[group.start : group.stop]


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything that pass 2 needs: the plan, the loaded model in its engine, and the maker of outputs."""

    config: RunConfig
    rows: TokenisedRows
    plan: Plan
    groups: RowGroups
    pool: PoolSize
    engine: Engine
    outputs: Outputs

    def run(self, results: Results, interrupt: Interrupt, *, quiet: bool) -> None:
        """Generate every planned row; outputs go to `results` as rows finish.

        Finished rows are committed however the run ends. Raises Interrupted after the step in which a signal arrived.
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
        """Return the planned figures for the report, summed over the sessions of the run, each for its own rows."""
        return PlannedFigures(
            num_unique_tokens=earlier.num_unique_tokens + self.plan.num_unique_tokens,
            hit_ceiling=earlier.hit_ceiling + self.plan.hit_ceiling,
            ceilings=self.plan.ceilings,
            num_blocks=self.pool.num_blocks,
            pool_reason=self.pool.reason,
        )

    def prefix_of(self, group: int) -> GroupPrefix:
        """Return the first row of a prefix group and the length of its prefix, for the report."""
        positions = self.groups.positions(group)
        num_tokens = self.groups.groups[group].num_blocks * self.engine.scheduler.cache.block_size
        return GroupPrefix(self.rows.row_indices[int(positions.min())], num_tokens)

    def requests(self) -> Iterator[Request]:
        """Yield the first sample of every row in visiting order, carrying the row's other samples; made on demand."""
        for visit_index, position in enumerate(self.plan.order):
            params = self.rows.sampling.params(position)
            conditions = RowConditions(self.config, self.outputs, params, self.rows.store[position])
            first, *later = (
                self._request(visit_index, params, sample, conditions.of_sample()) for sample in range(params.n)
            )
            first.later_samples = later
            for sample in later:  # the log-probabilities of the prompt are the same for all samples
                sample.prompt_logprobs = first.prompt_logprobs
            yield first

    def _request(self, visit_index: int, params: SamplingParams, sample: int, conditions: Conditions) -> Request:
        rows, plan, position = self.rows, self.plan, self.plan.order[visit_index]
        token_ids, num_seen = rows.store[position], int(plan.seen[visit_index])
        num_findable = num_seen if self.engine.scheduler.cache.enabled else 0
        max_tokens = int(rows.max_tokens[position])
        if conditions.thinking is None and params.max_tokens is not None:
            max_tokens = min(max_tokens, params.max_tokens)
        return Request(
            row_index=rows.row_indices[position],
            prompt_token_ids=token_ids,
            params=params,
            rng_key=rows.rng_key(position),
            max_tokens=max_tokens,
            shared_with_next=None if plan.shared_with_next is None else int(plan.shared_with_next[visit_index]),
            end_token_ids=conditions.end_token_ids,
            stop_condition=conditions.stop_condition,
            constraint=conditions.constraint,
            thinking=conditions.thinking,
            sample_index=sample,
            account=PromptAccount(
                hit_ceiling=self._hit_ceiling(len(token_ids), num_findable, params),
                num_unique_tokens=len(token_ids) - num_seen,
                num_seen_tokens=num_findable,
                group=self.groups.of(position),
            ),
        )

    def _hit_ceiling(self, num_prompt: int, num_seen: int, params: SamplingParams) -> int:
        """Return one row's share of the plan's hit ceiling in tokens, as `plan.limits.num_hit_blocks` defines it."""
        size = self.engine.scheduler.cache.block_size
        num_blocks = min(num_seen // size, (num_prompt - 1) // size)
        return 0 if params.prompt_logprobs is not None else num_blocks * size


class RowsToRun(BadRows, Protocol):
    """Knows which rows remain to be run, and takes the bad ones."""

    def remaining(self, row_indices: array[int]) -> Positions:
        """Return the indices into `row_indices` of the rows that remain."""


def prepare_generation(
    config: RunConfig, rows: TokenisedRows, results: RowsToRun, watch: Stopwatch
) -> Generation | None:
    """Plan the rows that are not committed yet and load the model. Without such a row returns None and loads nothing.

    Rows whose prompt can never fit the KV pool go to `results`. Raises ModelError or CapacityError.
    """
    remaining = results.remaining(rows.row_indices)
    if not len(remaining):
        return None
    with watch.part("plan"):
        plan = plan_rows(config, rows, remaining)
        planned = event("plan", rows=len(remaining), hit_ceiling=plan.hit_ceiling)
        log.info("%d rows planned", len(remaining), extra=planned)
    if config.device.type == "cpu":
        limit_threads()
    backend = make_backend(config.attention)
    with watch.part("load"), warm_up(backend, config.layers[0], config.model.dtype):
        model = load_weights(config.model, config.job.spec.model, config.device, IMPLEMENTATION)
        if config.attention == "cpu":
            disable_malloc_trimming()
            fuse(model)
    with watch.part("plan"):
        for_steps = _bytes_for_steps(model, backend, config, rows, len(plan.order))
        plan, pool = fit_pool(config, rows, plan, results, available_memory(config.device) - for_steps)
    settings = _engine_settings(config, pool.num_blocks)
    engine = assemble_engine(model, config.layers, backend, config.model.unused_token_ids, settings)
    ready = event("weights_loaded", device=str(config.device), blocks=pool.num_blocks)
    log.info("the model is loaded on %s, with %d KV blocks", config.device, pool.num_blocks, extra=ready)
    groups = RowGroups(plan, len(rows), config.block_size)
    outputs = Outputs(
        config.model.tokenizer,
        rows.locations,
        config.output,
        follows_prompt=config.input.text is not None or config.input.token_ids is not None,
    )
    return Generation(config, rows, plan, groups, pool, engine, outputs)


def _bytes_for_steps(
    model: PreTrainedModel, backend: Backend, config: RunConfig, rows: TokenisedRows, num_rows: int
) -> int:
    """Measure what the largest steps take, or on a CPU estimate it by the formula that `plan` uses."""
    if not can_measure_memory(config.device):
        return bytes_for_steps(config, rows, num_rows)
    unused, settings = config.model.unused_token_ids, _engine_settings(config, num_blocks=1)
    return measure_steps(model, config.layers, backend, unused, settings, rows.sampling.worst_case)


def _engine_settings(config: RunConfig, num_blocks: int) -> EngineSettings:
    is_gpu = config.device.type == "cuda"
    return EngineSettings(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        expected_tokens=config.expected_tokens,
        prefix_cache=config.prefix_cache,
        max_model_len=config.max_model_len,
        by_prefix=config.order == "prefix",
        lag=1 if is_gpu else 0,
        replay_decodes=is_gpu and config.attention == "triton",
    )
