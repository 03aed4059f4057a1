"""Pass 2: the planned prompts through the model. Knows how a row becomes a request and a request an output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchgen.engine.assemble import EngineSettings, assemble_engine
from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.job.load import Job
from batchgen.job.progress import Progress
from batchgen.job.results import Results
from batchgen.job.target import Target
from batchgen.job.tokenise import TokenisedRows
from batchgen.models.attention import IMPLEMENTATION, make_backend
from batchgen.models.device import available_memory
from batchgen.models.kv_cache import PoolSize, size_pool
from batchgen.models.load import load_weights
from batchgen.plan.plan import Plan, make_plan
from batchgen.prompts.detokenize import Detokenizer, StopMatcher
from batchgen.request_output import RequestOutput
from batchgen.stats.report import PlannedFigures
from batchgen.stats.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything that pass 2 needs, ready to start."""

    target: Target
    rows: TokenisedRows
    plan: Plan
    pool: PoolSize
    engine: Engine
    detokenizer: Detokenizer

    def run(self, results: Results, *, quiet: bool) -> None:
        """Run every planned row to its end; outputs go to `results` as they come."""
        num_bad, stats = results.counts.num_failed, self.engine.stats
        num_rows = num_bad + len(self.plan.order)
        with Progress(num_rows, num_bad, stats, self.pool.num_blocks, quiet=quiet) as progress:
            for finished in self.engine.run(self._requests()):
                for request in finished:
                    results.add(_output(request, self.detokenizer))
                results.commit_if_due()
                progress.step_done(len(finished))

    def figures(self) -> PlannedFigures:
        """What the plan says, for the report."""
        return PlannedFigures(
            hit_ceiling=self.plan.hit_ceiling, num_blocks=self.pool.num_blocks, pool_reason=self.pool.reason
        )

    def _requests(self) -> Iterator[Request]:
        """The requests in visiting order, made when the engine wants them."""
        params, rows, plan = self.target.params, self.rows, self.plan
        end_token_ids = frozenset() if params.ignore_eos else self.target.info.eos_token_ids
        for place, position in enumerate(plan.order):
            yield Request(
                row_index=rows.row_indices[position],
                prompt_token_ids=rows.store[position],
                params=params,
                draw_key=rows.draw_keys[position],
                max_tokens=rows.max_tokens[position],
                shared_with_next=None if plan.shared_with_next is None else plan.shared_with_next[place],
                end_token_ids=end_token_ids,
                stop_condition=StopMatcher(self.detokenizer, params.stop) if params.stop else None,
            )


def prepare_generation(
    job: Job, target: Target, rows: TokenisedRows, results: Results, watch: Stopwatch
) -> Generation | None:
    """Load the model and plan; None, and no weight is read, when no row is left to run.

    Rows whose prompt can never fit the KV pool go to `results`. Raises ModelError or CapacityError.
    """
    if not len(rows):
        return None
    with watch.part("load"):
        model = load_weights(target.info, job.spec.model, target.device, IMPLEMENTATION)
    with watch.part("plan"):
        plan, pool = _plan(job, target, rows, results)
    settings = _engine_settings(job, target, pool)
    backend = make_backend(target.attention)
    engine = assemble_engine(model, target.layers, backend, target.info.unused_token_ids, settings)
    return Generation(target, rows, plan, pool, engine, Detokenizer(target.info.tokenizer))


def _plan(job: Job, target: Target, rows: TokenisedRows, results: Results) -> tuple[Plan, PoolSize]:
    """The visiting order of the rows that fit the pool, and the pool; rows that never can fit it fail here."""
    engine = job.spec.engine

    def plan_of(positions: list[int]) -> Plan:
        return make_plan(
            rows.store,
            positions,
            rows.max_tokens,
            block_size=engine.block_size,
            max_num_seqs=target.max_num_seqs,
            by_prefix=engine.order == "prefix",
            share=engine.prefix_cache,
        )

    plan = plan_of(list(range(len(rows))))
    pool = size_pool(
        target.layers,
        engine.block_size,
        target.info.dtype,
        num_blocks=engine.num_blocks,
        num_blocks_needed=plan.num_blocks_needed,
        available_bytes=available_memory(target.device),
        memory_fraction=engine.memory_fraction,
    )
    capacity = pool.num_blocks * engine.block_size
    too_long = [position for position in plan.order if len(rows.store[position]) > capacity]
    for position in too_long:
        length = len(rows.store[position])
        results.fail(rows.row_indices[position], _does_not_fit(rows.row_indices[position], length, capacity), length)
    if too_long:
        plan = plan_of(sorted(set(plan.order) - set(too_long)))
    return plan, pool


def _does_not_fit(row_index: int, length: int, capacity: int) -> str:
    return (
        f"row {row_index + 1} of the input: the prompt needs {length} tokens of KV cache, the whole pool has "
        f"{capacity}; raise engine.num_blocks or engine.memory_fraction"
    )


def _engine_settings(job: Job, target: Target, pool: PoolSize) -> EngineSettings:
    engine = job.spec.engine
    return EngineSettings(
        num_blocks=pool.num_blocks,
        block_size=engine.block_size,
        max_num_seqs=target.max_num_seqs,
        max_batched_tokens=target.max_batched_tokens,
        expected_tokens=engine.expected_tokens,
        prefix_cache=engine.prefix_cache,
        max_model_len=target.max_model_len,
        by_prefix=engine.order == "prefix",
    )


def _output(request: Request, detokenizer: Detokenizer) -> RequestOutput:
    """The last form of a row: its text cut before a stop string, its error with its place."""
    assert request.finish_reason is not None
    stop = request.stop_condition
    text = stop.text if isinstance(stop, StopMatcher) else detokenizer.decode(request.output_token_ids)
    return RequestOutput(
        row_index=request.row_index,
        finish_reason=request.finish_reason,
        sample_index=request.sample_index,
        completion=text,
        error=None if request.error is None else f"row {request.row_index + 1} of the input: {request.error}",
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=len(request.output_token_ids),
        cached_tokens=request.num_cached_tokens,
    )
