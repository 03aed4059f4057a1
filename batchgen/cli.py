"""The command line: argv to calls, and the one place that turns exceptions into exit codes.

    0    every row is good             3    finished, some rows failed
    2    refused before generating     130  interrupted
    1    a bug

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import click

from batchgen import __version__
from batchgen.errors import BatchgenError

REFUSED, INTERRUPTED, BUG = 2, 130, 1


class _Group(click.Group):
    """A group of commands whose exceptions become exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BatchgenError as error:
            click.echo(str(error), err=True)
            ctx.exit(REFUSED)
        except KeyboardInterrupt:
            click.echo("batchgen: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click's own
        except Exception:
            click.echo(traceback.format_exc(), err=True, nl=False)
            click.echo("batchgen: this is a bug in batchgen; please report it with the lines above", err=True)
            ctx.exit(BUG)


class _EchoHandler(logging.Handler):
    """Log lines on stderr, in words."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="batchgen")
def main() -> None:
    """Prompts from Parquet or JSONL in, completions in Parquet out; every shared prefix is computed once.

    Example: batchgen run jobs/quickstart.yaml
    """


@main.command()
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override one key of the job file.")
@click.option("--quiet", is_flag=True, help="No progress bar, and of the log only warnings.")
@click.pass_context
def run(ctx: click.Context, job_file: Path, overrides: tuple[str, ...], quiet: bool) -> None:
    """Run a job: the whole file is checked first, then the model is loaded.

    Exits with 0 if every row is good, 3 if some failed, 2 if the job, its input or its model was refused.

    Example: batchgen run jobs/quickstart.yaml --set sampling.seed=1 --set input.limit=100
    """
    _log_to_stderr(logging.WARNING if quiet else logging.INFO)
    from batchgen.job.load import load_job

    job = load_job(job_file, overrides)
    from batchgen.job.run import run_job  # imports torch, so only after the job file is known to be good

    report = run_job(job, quiet=quiet)
    click.echo(report.table())
    click.echo(report.summary())
    ctx.exit(report.exit_code)


@main.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors.

    Example: batchgen schema > batchgen.schema.json
    """
    from batchgen.job.spec import JobSpec

    click.echo(json.dumps(JobSpec.model_json_schema(), indent=2))


def _log_to_stderr(level: int) -> None:
    handler = _EchoHandler()
    handler.setFormatter(logging.Formatter("batchgen: %(message)s"))
    logger = logging.getLogger("batchgen")
    logger.handlers = [handler]
    logger.setLevel(level)
