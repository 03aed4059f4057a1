"""The plan of a job's prompts and the size of its KV pool, for `run` and `plan` alike. Reads no weight."""

from __future__ import annotations

import numpy as np

from batchgen.engine.step import MAX_PROMPT_LOGITS
from batchgen.job.run_config import RunConfig
from batchgen.models.kv_cache import PoolSize, size_pool, step_bytes
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import Positions
from batchgen.prompts.tokenise import BadRows, TokenisedRows


def plan_rows(config: RunConfig, rows: TokenisedRows, positions: Positions | None = None) -> Plan:
    """Plan all rows, or those at `positions` (ascending) of the token store."""
    return make_plan(
        rows.store,
        np.arange(len(rows)) if positions is None else positions,
        rows.max_tokens,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        by_prefix=config.order == "prefix",
        share=config.prefix_cache,
        num_samples=rows.sampling.num_samples,
        scored=rows.sampling.is_scored,
    )


def fit_pool(
    config: RunConfig, rows: TokenisedRows, plan: Plan, bad_rows: BadRows, available_bytes: int
) -> tuple[Plan, PoolSize]:
    """Size the KV pool within the memory left beside weights and steps; returns the plan of the rows that fit it.

    Rows whose prompt is larger than the whole pool go to `bad_rows`. Raises CapacityError.
    """
    pool = size_pool(
        config.layers,
        config.block_size,
        config.model.dtype,
        num_blocks=config.num_blocks,
        num_blocks_needed=plan.num_blocks_needed,
        available_bytes=max(available_bytes, 0),
        memory_fraction=config.memory_fraction,
    )
    capacity = pool.num_blocks * config.block_size
    too_long = plan.order[rows.store.lengths(plan.order) > capacity]
    for position in too_long.tolist():
        row_index, length = rows.row_indices[position], len(rows.store[position])
        bad_rows.fail(row_index, _does_not_fit(rows.locations[row_index], length, capacity), length)
    if len(too_long):
        plan = plan_rows(config, rows, np.setdiff1d(plan.order, too_long))
    return plan, pool


def bytes_for_steps(config: RunConfig, rows: TokenisedRows, num_rows: int) -> int:
    """Estimate the bytes that the largest step of `num_rows` rows needs beside weights and KV."""
    model, num_samples = config.model, int(np.max(rows.sampling.num_samples))
    # All samples of a row draw in the step that ends its prompt, including those that must wait afterwards.
    num_draws = min(config.max_num_seqs, num_rows * num_samples) + num_samples - 1
    num_logits = num_draws + (MAX_PROMPT_LOGITS if np.any(rows.sampling.is_scored) else 0)
    return step_bytes(model.config.hidden_size, model.vocab_size, num_logits, config.max_batched_tokens, model.dtype)


def _does_not_fit(location: str, length: int, capacity: int) -> str:
    return (
        f"{location}: the prompt needs {length} tokens of KV cache, the whole pool has "
        f"{capacity}; raise engine.num_blocks or engine.memory_fraction"
    )
