"""How the prompts of a job are planned and how large its KV pool is. Reads no weight: `run` and `plan` share it."""

from __future__ import annotations

import numpy as np

from batchgen.engine.step import MAX_PROMPT_LOGITS
from batchgen.job.target import Target
from batchgen.models.kv_cache import PoolSize, size_pool, step_bytes
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import Positions
from batchgen.prompts.tokenise import BadRows, TokenisedRows
from batchgen.spec.load import Job


def plan_rows(job: Job, target: Target, rows: TokenisedRows, positions: Positions | None = None) -> Plan:
    """The visiting order of all rows, or of those at `positions` (growing), and its limits."""
    engine = job.spec.engine
    return make_plan(
        rows.store,
        np.arange(len(rows)) if positions is None else positions,
        rows.max_tokens,
        block_size=engine.block_size,
        max_num_seqs=target.max_num_seqs,
        by_prefix=engine.order == "prefix",
        share=engine.prefix_cache,
        num_samples=rows.sampling.num_samples,
        scored=rows.sampling.is_scored,
    )


def fit_pool(
    job: Job, target: Target, rows: TokenisedRows, plan: Plan, bad_rows: BadRows, available_bytes: int
) -> tuple[Plan, PoolSize]:
    """The KV pool within the memory left beside model and steps, and the plan of the rows that can ever fit it.

    The others go to `bad_rows`. Raises CapacityError.
    """
    engine, info = job.spec.engine, target.info
    pool = size_pool(
        target.layers,
        engine.block_size,
        info.dtype,
        num_blocks=engine.num_blocks,
        num_blocks_needed=plan.num_blocks_needed,
        available_bytes=max(available_bytes, 0),
        memory_fraction=engine.memory_fraction,
    )
    capacity = pool.num_blocks * engine.block_size
    too_long = plan.order[rows.store.lengths(plan.order) > capacity]
    for position in too_long.tolist():
        row_index, length = rows.row_indices[position], len(rows.store[position])
        bad_rows.fail(row_index, _does_not_fit(rows.locations[row_index], length, capacity), length)
    if len(too_long):
        plan = plan_rows(job, target, rows, np.setdiff1d(plan.order, too_long))
    return plan, pool


def bytes_for_steps(target: Target, rows: TokenisedRows, num_rows: int) -> int:
    """What the largest step of so many rows of a job needs beside weights and KV."""
    info, num_samples = target.info, int(np.max(rows.sampling.num_samples))
    # All samples of a row draw in the step that ends its prompt, also those that have to wait then.
    num_draws = min(target.max_num_seqs, num_rows * num_samples) + num_samples - 1
    num_logits = num_draws + (MAX_PROMPT_LOGITS if np.any(rows.sampling.is_scored) else 0)
    return step_bytes(info.config.hidden_size, info.vocab_size, num_logits, target.max_batched_tokens, info.dtype)


def _does_not_fit(location: str, length: int, capacity: int) -> str:
    return (
        f"{location}: the prompt needs {length} tokens of KV cache, the whole pool has "
        f"{capacity}; raise engine.num_blocks or engine.memory_fraction"
    )
