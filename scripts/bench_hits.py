"""What the visiting order is worth: prefix hits of a whole job in prefix order and in input order, same KV pool.

    python -m scripts.bench_hits JOB.yaml [--set KEY=VALUE ...]

The real rows, tokenizer, plan, scheduler, block pool and prefix cache; a stand-in for the model that answers every row
with `sampling.max_tokens` tokens at once, so that thousands of rows take seconds. The pool has 1.5 times the blocks of
the largest running set (`max_num_seqs` rows at their full length, shared blocks once). Last line: JSON.
"""

from __future__ import annotations

import json
import tempfile
from datetime import datetime
from pathlib import Path

import click

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.engine import CompletedStep, Engine
from batchgen.engine.request import Request, SampledToken
from batchgen.engine.step import SchedulerOutput
from batchgen.io.input.readers import open_input
from batchgen.job.run_config import RunConfig, make_encoder, make_sampling, resolve_job
from batchgen.log import progress_bar
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import TokenisedRows, tokenise
from batchgen.spec.load import load_job
from batchgen.stats.counters import RunStats
from batchgen.stats.prompt_tokens import PromptAccount


class NoBadRows:
    """A benchmark of good rows only."""

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        raise click.ClickException(f"row {row_index + 1}: {error}")


class StandIn:
    """Answers every sampled chunk with token 0."""

    lag = 0

    def start(self, step: SchedulerOutput) -> CompletedStep:
        return CompletedStep([SampledToken(0)] * len(step.sampled_requests))


def drive(rows: TokenisedRows, plan: Plan, config: RunConfig, block_size: int, num_blocks: int) -> RunStats:
    """Run every row through the real scheduler."""
    by_prefix = plan.shared_with_next is not None
    settings = EngineSettings(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        expected_tokens=config.sampling.max_tokens,
        prefix_cache=True,
        max_model_len=config.max_model_len,
        by_prefix=by_prefix,
    )
    engine = Engine(make_scheduler(settings), StandIn(), RunStats(block_size, config.max_model_len))
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
    for _ in engine.run(requests):
        pass
    return engine.stats


def plan_rows(config: RunConfig, rows: TokenisedRows, *, by_prefix: bool) -> Plan:
    return make_plan(
        rows.store,
        range(len(rows)),
        rows.max_tokens,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        by_prefix=by_prefix,
    )


@click.command(help=__doc__)
@click.argument("job_file", type=click.Path(exists=True, path_type=Path))
@click.option("--set", "overrides", multiple=True, help="Override one key of the job file.")
def main(job_file: Path, overrides: tuple[str, ...]) -> None:
    job = load_job(job_file, overrides)
    config = resolve_job(job)
    source = open_input(config.input)
    encoder, sampling = make_encoder(config, datetime.now()), make_sampling(config, seed=0)
    block_size = config.block_size
    with tempfile.TemporaryDirectory() as folder:
        store = TokenStore(Path(folder) / "tokens.bin")
        rows = tokenise(source, encoder, sampling, NoBadRows(), store, bar=progress_bar("tokenise", quiet=True))
        depth_first = plan_rows(config, rows, by_prefix=True)
        largest = drive(rows, depth_first, config, block_size, depth_first.num_blocks_needed).peak_used_blocks
        num_blocks = largest * 3 // 2
        results = {}
        for order in ("prefix", "input"):
            plan = plan_rows(config, rows, by_prefix=order == "prefix")
            stats = drive(rows, plan, config, block_size, num_blocks)
            results[order] = {
                "hit_tokens": stats.prompt.hit,
                "copied_tokens": stats.prompt.copied,
                "computed_prompt_tokens": stats.prompt.total - stats.prompt.found,
                "hit_rate": stats.hit_rate,
                "hit_efficiency": stats.prompt.hit / plan.hit_ceiling if plan.hit_ceiling else 1.0,
                "misses": stats.prompt.misses,
                "preemptions": stats.num_preemptions,
            }
            click.echo(f"order: {order:<6}  {results[order]}")
    click.echo(
        json.dumps(
            {
                "rows": len(rows),
                "prompt_tokens": depth_first.num_prompt_tokens,
                "hit_ceiling": depth_first.hit_ceiling,
                "num_blocks": num_blocks,
                "largest_running_set": largest,
                **results,
            }
        )
    )


if __name__ == "__main__":
    main()
