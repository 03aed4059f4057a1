"""plan_job: what a job would do, found without loading weights. Writes nothing into the output folder."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from batchgen.console import progress_bar
from batchgen.engine.admission import ExpectedTokens
from batchgen.errors import CapacityError, OutputError
from batchgen.io.input.readers import open_input
from batchgen.io.remote import locate
from batchgen.job.plan_report import (
    SCHEMA_VERSION,
    BadKind,
    BlockSizeFigures,
    Difference,
    JobPlan,
    MemoryNeed,
    TimeEstimate,
)
from batchgen.job.pool import bytes_for_steps, fit_pool, plan_rows
from batchgen.job.run_config import RunConfig, make_encoder, make_sampling, resolve_job
from batchgen.models.device import available_memory
from batchgen.models.kv_cache import PoolSize, block_bytes
from batchgen.models.load import check_weights_fit
from batchgen.plan.first_difference import first_difference
from batchgen.plan.groups import GroupSummary, prefix_groups, summarise_groups
from batchgen.plan.limits import num_hit_blocks
from batchgen.plan.plan import Plan
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import TokenisedRows, tokenise
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.spec.load import Job
from batchgen.stats.artifact import read_report
from batchgen.stats.report import RowCounts, RunReport

_NUM_KINDS = 5  # of bad rows that are shown
_TOKENS_BEFORE, _TOKENS_AFTER = 24, 12  # shown around the first difference


def plan_job(job: Job, *, tokens_per_second: float | None = None, quiet: bool = False) -> JobPlan:
    """Tokenise and plan a job as a run would. `tokens_per_second`: computed tokens, to estimate the time.

    Raises a BatchgenError when the job, its input, its model or its tokenizer is refused.
    """
    source = open_input(job.spec.input)
    config = resolve_job(job)
    encoder = make_encoder(config, datetime.now())
    # Nothing is drawn, so any seed will do.
    sampling = make_sampling(config, config.sampling.seed or 0)
    bad_rows = _BadRows()
    with tempfile.TemporaryDirectory(prefix="batchgen-plan-") as folder:
        store = TokenStore(Path(folder) / "tokens.bin")
        rows = tokenise(source, encoder, sampling, bad_rows, store, bar=progress_bar("tokenise", quiet=quiet))
        return _describe(config, rows, bad_rows, tokens_per_second)


def _describe(config: RunConfig, rows: TokenisedRows, bad_rows: _BadRows, tokens_per_second: float | None) -> JobPlan:
    num_rows = len(rows) + bad_rows.counts.num_failed
    plan, pool, problem = _fit_pool(config, rows, bad_rows)
    rows_at_once = None if pool is None else _rows_at_once(config, rows, plan, pool)
    return JobPlan(
        schema_version=SCHEMA_VERSION,
        num_rows=num_rows,
        num_bad=bad_rows.counts.num_failed,
        bad_rows=bad_rows.kinds(),
        max_errors=config.max_errors,
        num_samples=int(np.broadcast_to(rows.sampling.num_samples, len(rows))[plan.order].sum()),
        num_prompt_tokens=plan.num_prompt_tokens,
        num_unique_tokens=plan.num_unique_tokens,
        block_size=config.block_size,
        hit_ceiling=plan.hit_ceiling,
        block_sizes=[BlockSizeFigures(size, hits, plan.tail_waste[size]) for size, hits in plan.ceilings.items()],
        groups=_groups(plan, rows, config.block_size),
        difference=_difference(plan, rows, config),
        memory=_memory(config, rows, plan, pool, problem, rows_at_once),
        time=_time(config, rows, plan, tokens_per_second),
    )


class _BadRows:
    """Counts bad rows, and keeps the message of the first of each kind."""

    def __init__(self) -> None:
        self.counts = RowCounts()
        self._first: list[str] = []

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        num_kinds = len(self.counts.errors)
        self.counts.observe(RequestOutput(row_index, FinishReason.ERROR, error=error))
        if num_kinds < len(self.counts.errors) <= _NUM_KINDS:
            self._first.append(error)

    def kinds(self) -> list[BadKind]:
        """Return the first few kinds, in order of appearance."""
        return [BadKind(error, n) for error, n in zip(self._first, self.counts.errors.values(), strict=False)]


def _fit_pool(config: RunConfig, rows: TokenisedRows, bad_rows: _BadRows) -> tuple[Plan, PoolSize | None, str | None]:
    """Return the plan and the pool of a run on this machine; without a pool, the reason why there is none."""
    plan = plan_rows(config, rows)
    # The memory left beside weights and steps; a run on a GPU measures what its steps need.
    left = available_memory(config.device) - config.model.weight_bytes - bytes_for_steps(config, rows, len(plan.order))
    try:
        check_weights_fit(config.model, config.device, config.memory_fraction)
        plan, pool = fit_pool(config, rows, plan, bad_rows, left)
    except CapacityError as error:
        return plan, None, str(error)
    return plan, pool, None


def _groups(plan: Plan, rows: TokenisedRows, block_size: int) -> GroupSummary:
    order = plan.depth_first
    groups = summarise_groups(prefix_groups(order.shared[:-1] // block_size), order.positions, block_size)
    largest = [replace(group, first_row=rows.row_indices[group.first_row]) for group in groups.largest]
    return replace(groups, largest=largest)


def _difference(plan: Plan, rows: TokenisedRows, config: RunConfig) -> Difference | None:
    found = rows.labels and first_difference(rows.store, plan.depth_first, rows.labels)
    found = found or first_difference(rows.store, plan.depth_first)
    if found is None:
        return None

    def text(position: int, start: int, stop: int) -> str:
        decoded = config.model.tokenizer.decode(rows.store[position][max(start, 0) : stop])
        assert isinstance(decoded, str)
        return decoded

    at, (first, second) = found.token, found.example
    return Difference(
        token=at,
        num_compared=found.num_compared,
        num_pairs=found.num_pairs,
        lost_tokens=found.lost_tokens,
        rows=(rows.row_indices[first], rows.row_indices[second]),
        before=text(first, at - _TOKENS_BEFORE, at),
        after=(text(first, at, at + _TOKENS_AFTER), text(second, at, at + _TOKENS_AFTER)),
    )


def _memory(
    config: RunConfig,
    rows: TokenisedRows,
    plan: Plan,
    pool: PoolSize | None,
    problem: str | None,
    rows_at_once: int | None,
) -> MemoryNeed:
    return MemoryNeed(
        device=str(config.device),
        available=available_memory(config.device),
        memory_fraction=config.memory_fraction,
        weights=config.model.weight_bytes,
        steps=bytes_for_steps(config, rows, len(plan.order)),
        block=block_bytes(config.layers, config.block_size, config.model.dtype),
        num_blocks_needed=plan.num_blocks_needed,
        num_blocks=None if pool is None else pool.num_blocks,
        pool_reason=None if pool is None else pool.reason,
        problem=problem,
        rows_at_once=rows_at_once,
        max_num_seqs=config.max_num_seqs,
    )


def _rows_at_once(config: RunConfig, rows: TokenisedRows, plan: Plan, pool: PoolSize) -> int:
    """Estimate how many samples the pool admits before output lengths are known, taking all rows as average."""
    block_size, lengths = config.block_size, rows.store.lengths(plan.order)
    reserved = np.minimum(rows.max_tokens[plan.order], ExpectedTokens(config.expected_tokens).value)
    hits = num_hit_blocks(lengths, plan.seen, block_size) if config.prefix_cache else 0
    samples = np.broadcast_to(rows.sampling.num_samples, len(rows))[plan.order]
    blocks, num_later = -(-(lengths + reserved - 1) // block_size), samples - 1
    num_blocks = int((blocks - hits + num_later * (blocks - lengths // block_size)).sum())
    num_samples = int(samples.sum())
    fitting = pool.num_blocks * num_samples // max(num_blocks, 1)
    return min(max(fitting, 1), config.max_num_seqs, num_samples)


def _time(config: RunConfig, rows: TokenisedRows, plan: Plan, tokens_per_second: float | None) -> TimeEstimate:
    earlier = _earlier_run(config)
    output, output_source = _output_tokens(config, rows, earlier)
    num_output = int((np.minimum(rows.max_tokens, output) * rows.sampling.num_samples)[plan.order].sum())
    num_computed = plan.num_prompt_tokens - plan.hit_ceiling + num_output
    rate, source = tokens_per_second, "--tokens-per-second"
    if rate is None and earlier is not None and earlier.computed_tokens_per_second:  # not 0: every row failed
        rate, source = earlier.computed_tokens_per_second, f"measured in the run of {earlier.started} in output.path"
    return TimeEstimate(
        num_output_tokens=num_output,
        output_source=output_source,
        num_computed_tokens=num_computed,
        tokens_per_second=rate,
        rate_source=None if rate is None else source,
        seconds=None if rate is None else num_computed / rate,
    )


def _output_tokens(config: RunConfig, rows: TokenisedRows, earlier: RunReport | None) -> tuple[float, str]:
    """Return the expected tokens of a completion, and how they were estimated."""
    if earlier is not None and earlier.num_samples:
        return earlier.num_output_tokens / earlier.num_samples, "as long on average as in the earlier run"
    if config.expected_tokens is not None:
        return config.expected_tokens, "engine.expected_tokens a row"
    limits = rows.sampling.limits
    keys = "sampling.max_tokens" if config.reasoning is None else "sampling.max_tokens and max_reasoning_tokens"
    if None not in limits:
        return max(limit or 0 for limit in limits), f"{keys} a row, the most there can be"
    guess = ExpectedTokens().value
    return guess, f"{guess} a row, a guess, as {keys} {'is' if config.reasoning is None else 'are'} not set"


def _earlier_run(config: RunConfig) -> RunReport | None:
    """Return the report of a finished run in the output folder, if there is a readable one."""
    try:
        return read_report(locate(config.output.path))
    except OutputError:
        return None
