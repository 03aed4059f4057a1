"""run_job: the whole course of a run, told by calling the other rooms.

Row -read-> -tokenise-> Prompts -plan-> Request -schedule-> -run-> -update-> RequestOutput -write->
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq
import torch
import transformers

from batchgen import __version__
from batchgen.console import progress_bar
from batchgen.errors import OutputError, StorageError
from batchgen.io.input.readers import open_input
from batchgen.io.output.atomic import atomic_write
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.schema import output_schema
from batchgen.io.output.writers import ResultWriter
from batchgen.job.fingerprint import RunState, read_earlier_run
from batchgen.job.generate import Generation, prepare_generation
from batchgen.job.interrupt import Interrupt
from batchgen.job.outputs import optional_columns
from batchgen.job.results import Results, WorkLog
from batchgen.job.run_config import RunConfig, make_encoder, make_sampling, resolve_job
from batchgen.job.session import Start, open_session
from batchgen.job.settings import Setting, dump_yaml, resolved_document
from batchgen.log import event
from batchgen.models.load import check_weights_fit
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import tokenise
from batchgen.spec.load import Job
from batchgen.stats.artifact import RunArtifact, read_report
from batchgen.stats.counters import RunStats
from batchgen.stats.page import render_page
from batchgen.stats.report import PlannedFigures, RunReport, make_report
from batchgen.stats.stopwatch import Stopwatch
from batchgen.stats.tables import GROUPS, STEPS, groups_table, job_table, steps_table

log = logging.getLogger("batchgen")


def run_job(
    job: Job, *, quiet: bool = False, interrupt: Interrupt | None = None, only_failed: bool = False
) -> RunReport:
    """Run a job from its input to the finished output folder, or resume it where an earlier session stopped.

    `only_failed`: run rows again that failed in an earlier session, also those of a finished run.
    Raises a BatchgenError when the job, its input, its model or its output folder is refused, and Interrupted when a
    signal arrives while `interrupt` is entered.
    """
    watch, started, spec = Stopwatch(), datetime.now(), job.spec
    folder = OutputFolder(spec.output.path, spec.output.overwrite, spec.output.lock)
    job_started = event("job_started", job=str(job.path), output=str(folder.path))
    log.info("%s: writes to %s", job.path, folder.path, extra=job_started)
    source = open_input(spec.input)
    earlier = read_earlier_run(folder)
    folder.check([*source.files, job.path], is_known=earlier is not None)
    with watch.part("inspect"):
        config = resolve_job(job)
        session = open_session(config, source.files, folder, earlier, started, only_failed=only_failed)
        if session.start is Start.COMPLETE:
            log.info("%s: this job is complete already; nothing to do", folder.path)
            return _log_finished(read_report(folder.path))
        check_weights_fit(config.model, config.device, config.memory_fraction)
    state = session.state
    encoder = make_encoder(config, state.now)
    sampling = make_sampling(config, state.seed)
    with session.claimed(folder):
        session.prepare_journal(folder, config.output)
        results = Results(ResultWriter(folder), config.max_errors, WorkLog(folder, watch))
        with watch.part("tokenise"):
            store = TokenStore(folder.scratch / "tokens.bin")
            rows = tokenise(source, encoder, sampling, results, store, bar=progress_bar("tokenise", quiet=quiet))
        input_read = event("input_read", rows=len(rows), failed=results.counts.num_failed)
        log.info("%d rows can run", len(rows), extra=input_read)
        # Refuse names and types that cannot be written; those of JSON lines are known only after reading.
        optional = optional_columns(config.output, sampling)
        output_schema(source.schema, config.output.prefix, config.output.format, optional)
        generation = prepare_generation(config, rows, results, watch)
        folder.begin(state.to_json())
        with _storage_errors():
            if generation is not None:
                with watch.part("run"):
                    generation.run(results, interrupt or Interrupt(), quiet=quiet)
            with watch.part("write"):
                results.finish(source, config.output, {"job": str(job.path), "model": config.model.path}, optional)
            report = _report(config, results, generation, watch, started)
            write_report(folder, _artifact(report, generation, _resolved_job(config, generation, report, state)))
            folder.mark_success()
    return _log_finished(report)


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Turn an OutputError of the block, which follows the start of generation, into a StorageError."""
    try:
        yield
    except OutputError as error:
        advice = "the rows committed so far are kept; run the same command again to continue"
        raise StorageError(f"{error}; {advice}") from error


def _log_finished(report: RunReport) -> RunReport:
    ended = event("finished", ok=report.num_ok, failed=report.num_failed, exit_code=report.exit_code)
    log.info("finished: %s", report.summary(), extra=ended)
    return report


def _artifact(report: RunReport, generation: Generation | None, resolved: Mapping[str, Any]) -> RunArtifact:
    if generation is None:
        return RunArtifact(report, GROUPS.empty_table(), STEPS.empty_table(), resolved)
    stats = generation.engine.stats
    return RunArtifact(report, groups_table(stats.groups, generation.prefix_of), steps_table(stats.log), resolved)


def write_report(folder: OutputFolder, artifact: RunArtifact) -> None:
    """Write everything that `read_artifact` reads, and the page. Raises OutputError."""
    tables = {"job": job_table(artifact.report), "groups": artifact.groups, "steps": artifact.steps}
    for name, table in tables.items():
        with atomic_write(folder.stats / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
    folder.write_text("report.json", artifact.report.to_json())
    folder.write_text("job.yaml", dump_yaml(artifact.job))
    folder.write_text("report.html", render_page(artifact))


def _report(
    config: RunConfig, results: Results, generation: Generation | None, watch: Stopwatch, started: datetime
) -> RunReport:
    earlier = results.earlier
    if generation is not None:
        stats, figures = generation.engine.stats, generation.figures(earlier)
    else:
        stats = RunStats(config.block_size, config.max_model_len)
        results.resume_counters(stats)
        figures = PlannedFigures(num_unique_tokens=earlier.num_unique_tokens, hit_ceiling=earlier.hit_ceiling)
    return make_report(
        results.counts,
        stats,
        figures,
        started=started.isoformat(timespec="seconds"),
        visiting_order=config.order,
        seconds=watch.seconds(),
        environment={
            "batchgen": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "device": _device_name(config.device),
            "dtype": config.dtype,
        },
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"{device}, {torch.get_num_threads()} threads"


def _resolved_job(
    config: RunConfig, generation: Generation | None, report: RunReport, state: RunState
) -> dict[str, Any]:
    settings = [*config.settings, Setting("sampling.seed", state.seed, config.source_of("sampling.seed"))]
    if generation:
        num_blocks = generation.pool.num_blocks
        settings.append(Setting("engine.num_blocks", num_blocks, config.source_of("engine.num_blocks")))
    extra = {
        "environment": dict(report.environment),
        "clock": state.clock,
        "eos_token_ids": sorted(config.model.eos_token_ids),
        **({"rope_factors": config.rope_factors} if config.rope_factors else {}),
        "run": state.to_dict(),
    }
    document = resolved_document(config.job, settings, extra)
    document["sources"]["eos_token_ids"] = "model"
    return document
