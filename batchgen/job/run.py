"""run_job: the whole story of a run. Knows every room and does nothing itself.

Row -read-> -tokenise-> Prompt -plan-> Request -schedule-> -run-> -update-> RequestOutput -write->
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq
import torch
import transformers

from batchgen import __version__
from batchgen.io.input.readers import open_input
from batchgen.io.output.folder import OutputFolder, atomic_write
from batchgen.io.output.schema import output_schema
from batchgen.io.output.writers import ResultWriter
from batchgen.job.fingerprint import RunState, read_earlier_run
from batchgen.job.generate import Generation, prepare_generation
from batchgen.job.interrupt import Interrupt
from batchgen.job.outputs import optional_columns
from batchgen.job.results import Results, WorkLog
from batchgen.job.session import Start, open_session
from batchgen.job.settings import Setting, dump_yaml, resolved_document
from batchgen.job.target import Target, inspect_target
from batchgen.log import event
from batchgen.models.load import check_weights_fit
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import row_encoder, tokenise
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
    """Run a job from its input to the finished output folder, or on from where an earlier session of it stopped.

    `only_failed`: rows of an earlier session that failed run again, also those of a finished run.
    Raises a BatchgenError when the job, its input, its model or its output folder is refused, and Interrupted when
    `interrupt` is entered and a signal comes.
    """
    watch, started, spec = Stopwatch(), datetime.now(), job.spec
    folder = OutputFolder(spec.output.path, spec.output.overwrite)
    log.info(
        "%s: writes to %s",
        job.path,
        folder.path,
        extra=event("job_started", job=str(job.path), output=str(folder.path)),
    )
    source = open_input(spec.input)
    earlier = read_earlier_run(folder)
    folder.check([*source.files, job.path], is_known=earlier is not None)
    with watch.part("inspect"):
        target = inspect_target(job)
        session = open_session(job, target, source.files, folder, earlier, started, only_failed=only_failed)
        if session.start is Start.COMPLETE:
            log.info("%s: this job is complete already; nothing to do", folder.path)
            return _log_finished(read_report(folder.path))
        check_weights_fit(target.info, target.device, spec.engine.memory_fraction)
    target, state = target.with_seed(session.state.seed), session.state
    encoder = row_encoder(target, spec.input, state.now)
    with session.claimed(folder):
        session.prepare_journal(folder, spec.output)
        results = Results(ResultWriter(folder), spec, WorkLog(folder, watch))
        with watch.part("tokenise"):
            store = TokenStore(folder.scratch / "tokens.bin")
            rows = tokenise(source, encoder, target, results, store, quiet=quiet)
        log.info(
            "%d rows can run", len(rows), extra=event("input_read", rows=len(rows), failed=results.counts.num_failed)
        )
        # refuses names and types that cannot be written; those of JSON lines are known only now
        optional = optional_columns(spec.output, rows.sampling)
        output_schema(source.schema, spec.output.prefix, spec.output.format, optional)
        generation = prepare_generation(job, target, rows, results, watch)
        folder.begin(state.to_json())
        if generation is not None:
            with watch.part("run"):
                generation.run(results, interrupt or Interrupt(), quiet=quiet)
        with watch.part("write"):
            results.finish(source, spec.output, {"job": str(job.path), "model": spec.model.path}, optional)
        report = _report(job, target, results, generation, watch, started)
        write_report(folder, _artifact(report, generation, _resolved_job(job, target, generation, report, state)))
        folder.mark_success()
    return _log_finished(report)


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
    """Everything that `read_artifact` reads, and the page. Raises OutputError."""
    tables = {"job": job_table(artifact.report), "groups": artifact.groups, "steps": artifact.steps}
    for name, table in tables.items():
        with atomic_write(folder.stats / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
    folder.write_text("report.json", artifact.report.to_json())
    folder.write_text("job.yaml", dump_yaml(artifact.job))
    folder.write_text("report.html", render_page(artifact))


def _report(
    job: Job, target: Target, results: Results, generation: Generation | None, watch: Stopwatch, started: datetime
) -> RunReport:
    earlier = results.earlier
    if generation is not None:
        stats, figures = generation.engine.stats, generation.figures(earlier)
    else:
        stats = RunStats(job.spec.engine.block_size, target.max_model_len)
        results.resume_counters(stats)
        figures = PlannedFigures(num_unique_tokens=earlier.num_unique_tokens, hit_ceiling=earlier.hit_ceiling)
    return make_report(
        results.counts,
        stats,
        figures,
        started=started.isoformat(timespec="seconds"),
        visiting_order=job.spec.engine.order,
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


def _resolved_job(
    job: Job, target: Target, generation: Generation | None, report: RunReport, state: RunState
) -> dict[str, Any]:
    settings = list(target.settings)
    if generation:
        settings.append(
            Setting("engine.num_blocks", generation.pool.num_blocks, job.sources.get("engine.num_blocks", "default"))
        )
    extra = {
        "environment": dict(report.environment),
        "clock": state.clock,
        "eos_token_ids": sorted(target.info.eos_token_ids),
        **({"rope_factors": target.rope_factors} if target.rope_factors else {}),
        "run": state.to_dict(),
    }
    document = resolved_document(job, settings, extra)
    document["sources"]["eos_token_ids"] = "model"
    return document
