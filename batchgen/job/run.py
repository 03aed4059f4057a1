"""run_job: the whole story of a run. Knows every room and does nothing itself.

    Row -read-> -tokenise-> Prompt -plan-> Request -schedule-> -run-> -update-> RequestOutput -write->
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import torch
import transformers

from batchgen import __version__
from batchgen.engine.assemble import EngineSettings, assemble_engine
from batchgen.engine.philox import draw_key
from batchgen.engine.request import Request
from batchgen.io.folder import OutputFolder
from batchgen.io.readers import Input, open_input
from batchgen.io.schema import output_schema
from batchgen.io.writers import ResultWriter
from batchgen.job.load import Job
from batchgen.job.progress import Progress
from batchgen.job.resolve import Setting, dump_yaml, resolved_document
from batchgen.job.results import Results
from batchgen.job.target import Target, inspect_target
from batchgen.job.tokenise import TokenisedRows, encode_rows
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.device import available_memory
from batchgen.models.kv_cache import PoolSize, size_pool
from batchgen.models.load import load_weights
from batchgen.plan.plan import Plan, make_plan
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.detokenize import Detokenizer, StopMatcher
from batchgen.prompts.encoder import PromptEncoder
from batchgen.prompts.prompt import RowKeys
from batchgen.request_output import RequestOutput
from batchgen.stats.counters import RunStats
from batchgen.stats.report import RunReport, make_report
from batchgen.stats.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Generation:
    """What the run of the model leaves for the report."""

    plan: Plan
    pool: PoolSize
    stats: RunStats


def run_job(job: Job, *, quiet: bool = False) -> RunReport:
    """Run a job from its input to the finished output folder.

    Raises a BatchgenError when the job, its input, its model or its output folder is refused.
    """
    watch = Stopwatch()
    clock = datetime.now()
    folder = OutputFolder(job.spec.output.path, job.spec.output.overwrite)
    source = open_input(job.spec.input)
    folder.check(source.files)
    with watch.part("inspect"):
        target = inspect_target(job)
    encoder = PromptEncoder(target.info.tokenizer, job.spec.input, vocab_size=target.info.vocab_size, clock=clock)
    folder.prepare()
    results = Results(ResultWriter(folder), job.spec)
    with watch.part("tokenise"):
        rows = _tokenise(job, target, source, encoder, results, folder)
    output_schema(source.schema, job.spec.output.prefix)  # refuses doubled names; JSON lines' are known only now
    done = _generate(job, target, rows, results, watch, quiet=quiet)
    with watch.part("write"):
        results.finish(source, job.spec.output.prefix)
    report = _report(target, results, done, watch)
    folder.write_text("report.json", report.to_json())
    folder.write_text("job.yaml", _resolved_job(job, target, done, report, clock))
    folder.mark_success()
    return report


def _tokenise(
    job: Job, target: Target, source: Input, encoder: PromptEncoder, results: Results, folder: OutputFolder
) -> TokenisedRows:
    rows = TokenisedRows(TokenStore(folder.state / "tokens.bin"))
    keys = RowKeys(job.spec.input.id)
    for prompt in encode_rows(source.read_rows(), encoder, keys, target.max_model_len, results):
        rows.store.append(prompt.token_ids)
        rows.row_indices.append(prompt.row_index)
        rows.draw_keys.append(draw_key(target.params.seed, prompt.key))
        rows.max_tokens.append(target.max_tokens(len(prompt.token_ids)))
    rows.store.seal()
    return rows


def _generate(
    job: Job, target: Target, rows: TokenisedRows, results: Results, watch: Stopwatch, *, quiet: bool
) -> Generation | None:
    """Pass 2; None when no row is left to run, for which no weight is read."""
    if not len(rows):
        return None
    with watch.part("load"):
        model = load_weights(target.info, job.spec.model, target.device, IMPLEMENTATION)
    with watch.part("plan"):
        plan, pool = _plan(job, target, rows, results)
    settings = _engine_settings(job, target, pool)
    engine = assemble_engine(model, target.layers, target.backend(), target.info.unused_token_ids, settings)
    detokenizer = Detokenizer(target.info.tokenizer)
    num_rows = results.counts.num_failed + len(plan.order)
    with (
        watch.part("run"),
        Progress(num_rows, results.counts.num_failed, engine.stats, pool.num_blocks, quiet=quiet) as progress,
    ):
        for finished in engine.run(_requests(target, rows, plan, detokenizer)):
            for request in finished:
                results.add(_output(request, detokenizer))
                progress.row_done()
            progress.step_done()
    return Generation(plan, pool, engine.stats)


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
        by_prefix=engine.order == "prefix",
    )


def _requests(target: Target, rows: TokenisedRows, plan: Plan, detokenizer: Detokenizer) -> Iterator[Request]:
    """The requests in visiting order, made when the engine wants them."""
    params = target.params
    for place, position in enumerate(plan.order):
        yield Request(
            row_index=rows.row_indices[position],
            prompt_token_ids=rows.store[position],
            params=params,
            draw_key=rows.draw_keys[position],
            max_tokens=rows.max_tokens[position],
            shared_with_next=None if plan.shared_with_next is None else plan.shared_with_next[place],
            end_token_ids=frozenset() if params.ignore_eos else target.info.eos_token_ids,
            stop_condition=StopMatcher(detokenizer, params.stop) if params.stop else None,
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


def _report(target: Target, results: Results, done: Generation | None, watch: Stopwatch) -> RunReport:
    return make_report(
        results.counts,
        done.stats if done else RunStats(block_size=0),
        hit_ceiling=done.plan.hit_ceiling if done else 0,
        num_blocks=done.pool.num_blocks if done else 0,
        pool_reason=done.pool.reason if done else "no row to run",
        seconds=watch.seconds(),
        environment={
            "batchgen": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "device": _device_name(target.device),
            "dtype": str(target.info.dtype).removeprefix("torch."),
        },
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"{device}, {torch.get_num_threads()} threads"


def _resolved_job(job: Job, target: Target, done: Generation | None, report: RunReport, clock: datetime) -> str:
    settings = list(target.settings)
    if done:
        settings.append(
            Setting("engine.num_blocks", done.pool.num_blocks, job.sources.get("engine.num_blocks", "default"))
        )
    extra = {"environment": dict(report.environment), "clock": clock.isoformat()}
    return dump_yaml(resolved_document(job, settings, extra))
