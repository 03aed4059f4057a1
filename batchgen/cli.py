"""The command line: argv to calls, and the one place that turns exceptions into exit codes.

    0  every row is good              2    refused, or stopped by max_errors, a changed input or too little memory
    3  finished, some rows failed     4    the output could not be written after generation had begun (disk full)
    1  a bug                          130  interrupted by SIGINT (Ctrl-C)      143  interrupted by SIGTERM

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import traceback
from pathlib import Path
from typing import Any, Literal

import click

from batchgen import __version__
from batchgen.console import echo, protect_console
from batchgen.errors import BatchgenError
from batchgen.job.interrupt import Interrupt, Interrupted, ignore_hangup
from batchgen.log import LogFormat, adopt_library_warnings, event, log_to_stderr

log = logging.getLogger("batchgen")

INTERRUPTED, BUG = 130, 1
# New objects between two garbage collections. Imports and reading a tokenizer create hundreds of thousands that stay:
# with the default of 700, collecting takes a sixth of the processor time before the first token.
_NEW_OBJECTS = 100_000
DIFFERENT = 3  # like a run with failed rows: finished, with problems


class _Group(click.Group):
    """A group of commands whose exceptions become exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BatchgenError as error:
            log.error("%s", error, extra=event("error", exit_code=error.exit_code))
            ctx.exit(error.exit_code)
        except Interrupted as interrupted:
            log.warning("%s", interrupted, extra=event("interrupted", exit_code=interrupted.exit_code))
            ctx.exit(interrupted.exit_code)
        except KeyboardInterrupt:
            log.warning("interrupted", extra=event("interrupted", exit_code=INTERRUPTED))
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # click's own
        except Exception:
            words = "%sbatchgen: this is a bug in batchgen; please report it with the lines above"
            log.error(words, traceback.format_exc(), extra=event("error", exit_code=BUG))
            ctx.exit(BUG)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="batchgen")
def main() -> None:
    """Prompts from Parquet or JSON lines in, completions out; every shared prefix is computed once.

    Example: batchgen run jobs/quickstart.yaml
    """
    protect_console()
    gc.set_threshold(_NEW_OBJECTS)
    log_to_stderr(logging.INFO)


@main.command()
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override one key of the job file.")
@click.option("--only", type=click.Choice(["failed"]), help="Re-run only failed rows, even in a finished run.")
@click.option("--quiet", is_flag=True, help="No progress bar, and only warnings in the log.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="json: one object a line.")
@click.pass_context
def run(
    ctx: click.Context,
    job_file: Path,
    overrides: tuple[str, ...],
    only: str | None,
    quiet: bool,
    log_format: LogFormat,
) -> None:
    """Run a job, or resume it. The job file is checked before the model is loaded.

    Exits with 0 if every row is good, 3 if some failed (also when the job was complete already), 2 if the job, its
    input or its model was refused, 4 if the output could not be written after generation had begun (disk full). After
    SIGINT or SIGTERM the finished rows are kept, and the exit code is 130 or 143.

    Example: batchgen run jobs/quickstart.yaml --set sampling.seed=1 --set input.limit=100
    """
    log_to_stderr(logging.WARNING if quiet else logging.INFO, log_format)
    ignore_hangup()
    with Interrupt() as interrupt:
        from batchgen.spec.load import load_job

        job = load_job(job_file, overrides)
        from batchgen.job.run import run_job  # imports torch, so only after the job file is known to be good

        if log_format == "json":
            adopt_library_warnings()
        report = run_job(job, quiet=quiet or log_format == "json", interrupt=interrupt, only_failed=only == "failed")
    echo(report.table())
    echo(report.summary())
    ctx.exit(report.exit_code)


@main.command()
@click.argument("folders", metavar="OUT...", nargs=-1, required=True)
def report(folders: tuple[str, ...]) -> None:
    """Show the report of a finished run, or compare the reports of several runs.

    OUT is the output folder of a run. For one folder the table is printed and report.html is written again; for several
    folders the figures are printed side by side, oldest run first, and nothing is written.

    Example: batchgen report out/monday out/tuesday
    """
    from batchgen.io.output.folder import OutputFolder
    from batchgen.io.remote import locate
    from batchgen.stats.artifact import read_artifact, read_report
    from batchgen.stats.compare import compare
    from batchgen.stats.page import render_page

    if len(folders) > 1:
        echo(compare({folder: read_report(locate(folder)) for folder in folders}))
        return
    artifact = read_artifact(locate(folders[0]))
    echo(artifact.report.table())
    echo(artifact.report.summary())
    OutputFolder(folders[0]).write_text("report.html", render_page(artifact))


@main.command()
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override one key of the job file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="Computed tokens, for the estimate of the time.  [default: as an earlier run in output.path measured]",
)
@click.option("--quiet", is_flag=True, help="No progress bar, and only warnings in the log.")
def plan(
    job_file: Path, overrides: tuple[str, ...], as_json: bool, tokens_per_second: float | None, quiet: bool
) -> None:
    """Show what a job would do: rows, bad rows, shared prefixes, memory, time.

    Reads the input and the model's tokenizer and config, no weights; needs no GPU and writes no output. Exits with 0,
    or with 2 if the job, its input or its model was refused.

    Example: batchgen plan jobs/quickstart.yaml --tokens-per-second 800
    """
    if tokens_per_second is not None and not math.isfinite(tokens_per_second):
        raise click.BadParameter(f"{tokens_per_second} is not a rate", param_hint="--tokens-per-second")
    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    from batchgen.spec.load import load_job

    job = load_job(job_file, overrides)
    from batchgen.job.plan_job import plan_job  # imports torch, so only after the job file is known to be good

    job_plan = plan_job(job, tokens_per_second=tokens_per_second, quiet=quiet)
    echo(job_plan.to_json() if as_json else job_plan.table())


@main.command()
@click.argument("folder", metavar="OUT")
def status(folder: str) -> None:
    """Show whether the run in an output folder is finished, running or stopped, and count its rows so far.

    Example: batchgen status out/monday
    """
    from batchgen.io.output.folder import OutputFolder
    from batchgen.io.output.unfinished import describe_unfinished
    from batchgen.stats.artifact import read_report

    output = OutputFolder(folder)
    is_finished = output.success.exists()
    echo(f"finished\n{read_report(output.path).summary()}" if is_finished else describe_unfinished(output))


@main.command()
@click.argument("folder", metavar="OUT")
@click.option("--to", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="A new or empty folder.")
@click.option("--format", type=click.Choice(["parquet", "jsonl"]), default="parquet", help="Format without --job.")
@click.option(
    "--job", "job_file", metavar="JOB.yaml", type=click.Path(path_type=Path), help="Also write the input's columns."
)
def export(folder: str, to: Path, format: Literal["parquet", "jsonl"], job_file: Path | None) -> None:
    """Write the committed rows of an unfinished run, even while it runs.

    The columns are row_index (0 is the first row of the input) and those that batchgen adds. With --job they are those
    of a finished run, in its format: the columns of the input, which must be unchanged, and those that batchgen adds.

    Example: batchgen export out/monday --to partial/monday --job jobs/monday.yaml
    """
    from batchgen.io.output.folder import OutputFolder
    from batchgen.io.output.unfinished import export_committed
    from batchgen.job.export import export_job
    from batchgen.spec.load import load_job

    output = OutputFolder(folder)
    if job_file is not None:
        echo(f"rows={export_job(load_job(job_file), output, to)}")
    else:
        echo(f"rows={export_committed(output, to, format)}")


@main.command()
@click.argument("folder", metavar="OUT")
@click.option("--rows", type=click.IntRange(min=1), default=50, show_default=True, help="How many, evenly spread.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Instead of the dtype of the run.")
@click.option("--quiet", is_flag=True, help="No progress bar, and only warnings in the log.")
@click.pass_context
def verify(ctx: click.Context, folder: str, rows: int, dtype: str | None, quiet: bool) -> None:
    """Generate rows of a finished run again, each alone and without a cache, and compare them with its output.

    Nothing is written. Exits with 0 if all completions are the same or first differ where the model's two best logits
    are closer than 0.001, with 3 if any differs elsewhere, with 2 if the run or its input cannot be used.

    Example: batchgen verify out/monday --rows 50
    """
    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    from batchgen.job.verify import verify_run  # imports torch

    verification = verify_run(folder, num_rows=rows, dtype=dtype, quiet=quiet)
    for line in verification.lines():
        echo(line)
    ctx.exit(0 if verification.is_good else DIFFERENT)


@main.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors.

    Example: batchgen schema > batchgen.schema.json
    """
    from batchgen.spec.job_spec import JobSpec

    echo(json.dumps(JobSpec.model_json_schema(), indent=2))
