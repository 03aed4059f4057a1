"""What the visiting order is worth: prefix hits of a whole job in prefix order and in input order, with one KV pool.

    python -m scripts.bench.hits JOB.yaml [--set KEY=VALUE ...]

Rows, tokenizer, plan, scheduler, block pool and prefix cache are the real ones. A stand-in for the model gives every
row `sampling.max_tokens` tokens without computing any, so that thousands of rows take seconds. The pool has 1.5 times
the blocks of the largest running set (`max_num_seqs` rows at full length, shared blocks counted once). Last line: JSON.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from batchgen.engine.build import EngineSettings
from batchgen.engine.request import Request
from batchgen.job.run_config import RunConfig, resolve_job
from batchgen.plan.plan import Plan, make_plan
from batchgen.prompts.tokenise import TokenisedRows
from batchgen.spec.load import load_job
from batchgen.stats.counters import RunStats
from batchgen.stats.prompt_tokens import PromptAccount
from scripts.bench.job_rows import tokenise_job
from scripts.bench.stand_in import StandIn, make_engine


def plan_rows(rows: TokenisedRows, config: RunConfig, *, by_prefix: bool) -> Plan:
    """Plan a job in prefix order or in input order."""
    return make_plan(
        rows.store,
        range(len(rows)),
        rows.max_tokens,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        by_prefix=by_prefix,
    )


def drive(rows: TokenisedRows, plan: Plan, config: RunConfig, num_blocks: int) -> RunStats:
    """Run every row through the real scheduler, in the order of the plan."""
    settings = EngineSettings(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        expected_tokens=config.sampling.max_tokens,
        prefix_cache=True,
        max_model_len=config.max_model_len,
        by_prefix=plan.shared_with_next is not None,
    )
    requests = (
        Request(
            row_index=position,
            prompt_token_ids=rows.store[position],
            params=config.sampling,
            rng_key=0,
            max_tokens=int(rows.max_tokens[position]),
            shared_with_next=None if plan.shared_with_next is None else int(plan.shared_with_next[visit_index]),
            account=PromptAccount(num_seen_tokens=int(plan.seen[visit_index])),
        )
        for visit_index, position in enumerate(plan.order.tolist())
    )
    engine = make_engine(settings, StandIn())
    for _ in engine.run(requests):
        pass
    return engine.stats


def figures(plan: Plan, stats: RunStats) -> dict[str, Any]:
    """Return what one order reached."""
    return {
        "hit_tokens": stats.prompt.hit,
        "copied_tokens": stats.prompt.copied,
        "computed_prompt_tokens": stats.prompt.total - stats.prompt.found,
        "hit_rate": stats.hit_rate,
        "hit_efficiency": stats.prompt.hit / plan.hit_ceiling if plan.hit_ceiling else 1.0,
        "misses": stats.prompt.misses,
        "preemptions": stats.num_preemptions,
    }


@click.command(help=__doc__)
@click.argument("job_file", type=click.Path(exists=True, path_type=Path))
@click.option("--set", "overrides", multiple=True, help="Override one key of the job file.")
def main(job_file: Path, overrides: tuple[str, ...]) -> None:
    config = resolve_job(load_job(job_file, overrides))
    with tempfile.TemporaryDirectory() as folder:
        rows = tokenise_job(config, Path(folder, "tokens.bin"))
        plans = {order: plan_rows(rows, config, by_prefix=order == "prefix") for order in ("prefix", "input")}
        depth_first = plans["prefix"]
        largest = drive(rows, depth_first, config, depth_first.num_blocks_needed).peak_used_blocks
        num_blocks = largest * 3 // 2
        results = {}
        for order, plan in plans.items():
            results[order] = figures(plan, drive(rows, plan, config, num_blocks))
            click.echo(f"order: {order:<6}  {results[order]}")
    document = {
        "rows": len(rows),
        "prompt_tokens": depth_first.num_prompt_tokens,
        "hit_ceiling": depth_first.hit_ceiling,
        "num_blocks": num_blocks,
        "largest_running_set": largest,
    }
    click.echo(json.dumps({**document, **results}))


if __name__ == "__main__":
    main()
