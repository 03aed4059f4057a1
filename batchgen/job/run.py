"""run_job: the whole story of a run. Knows every room and does nothing itself.

Row -read-> -tokenise-> Prompt -plan-> Request -schedule-> -run-> -update-> RequestOutput -write->
"""

from __future__ import annotations

import platform
from datetime import datetime

import torch
import transformers

from batchgen import __version__
from batchgen.io.folder import OutputFolder
from batchgen.io.readers import open_input
from batchgen.io.schema import output_schema
from batchgen.io.writers import ResultWriter
from batchgen.job.generate import Generation, prepare_generation
from batchgen.job.load import Job
from batchgen.job.resolve import Setting, dump_yaml, resolved_document
from batchgen.job.results import Results
from batchgen.job.target import Target, inspect_target
from batchgen.job.tokenise import tokenise
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.encoder import PromptEncoder
from batchgen.stats.counters import RunStats
from batchgen.stats.report import PlannedFigures, RunReport, make_report
from batchgen.stats.stopwatch import Stopwatch


def run_job(job: Job, *, quiet: bool = False) -> RunReport:
    """Run a job from its input to the finished output folder.

    Raises a BatchgenError when the job, its input, its model or its output folder is refused.
    """
    watch, clock, spec = Stopwatch(), datetime.now(), job.spec
    folder = OutputFolder(spec.output.path, spec.output.overwrite)
    source = open_input(spec.input)
    folder.check([*source.files, job.path])
    with watch.part("inspect"):
        target = inspect_target(job)
    encoder = PromptEncoder(target.info.tokenizer, spec.input, vocab_size=target.info.vocab_size, clock=clock)
    with folder.claimed():
        results = Results(ResultWriter(folder), spec)
        with watch.part("tokenise"):
            store = TokenStore(folder.state / "tokens.bin")
            rows = tokenise(source, encoder, target, spec.input.id, results, store)
        output_schema(source.schema, spec.output.prefix)  # refuses doubled names; JSON lines' are known only now
        generation = prepare_generation(job, target, rows, results, watch)
        folder.begin()
    if generation is not None:
        with watch.part("run"):
            generation.run(results, quiet=quiet)
    with watch.part("write"):
        results.finish(source, spec.output.prefix)
    report = _report(job, target, results, generation, watch, clock)
    folder.write_text("report.json", report.to_json())
    folder.write_text("job.yaml", _resolved_job(job, target, generation, report, clock))
    folder.mark_success()
    return report


def _report(
    job: Job, target: Target, results: Results, generation: Generation | None, watch: Stopwatch, clock: datetime
) -> RunReport:
    return make_report(
        results.counts,
        generation.engine.stats if generation else RunStats(job.spec.engine.block_size, target.max_model_len),
        generation.figures() if generation else PlannedFigures(),
        started=clock.isoformat(timespec="seconds"),
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


def _resolved_job(job: Job, target: Target, generation: Generation | None, report: RunReport, clock: datetime) -> str:
    settings = list(target.settings)
    if generation:
        settings.append(
            Setting("engine.num_blocks", generation.pool.num_blocks, job.sources.get("engine.num_blocks", "default"))
        )
    extra = {"environment": dict(report.environment), "clock": clock.isoformat()}
    return dump_yaml(resolved_document(job, settings, extra))
