"""The rows of a job as token ids, for benches that need prompts and no run.

Knows how a run tokenises its input; knows nothing of what is done with the prompts.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from batchgen.io.input.readers import open_input
from batchgen.job.target import Target
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import TokenisedRows, row_encoder, tokenise
from batchgen.spec.load import Job


def tokenise_job(job: Job, target: Target, tokens: Path, *, quiet: bool = True) -> TokenisedRows:
    """Tokenise every row of a job, with the token store in the file `tokens`.

    Raises click.ClickException for a bad row: it would be missing from what is measured.
    """
    encoder = row_encoder(target, job.spec.input, datetime.now())
    return tokenise(open_input(job.spec.input), encoder, target, _NoBadRows(), TokenStore(tokens), quiet=quiet)


class _NoBadRows:
    """The bad rows of a job that may have none."""

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        raise click.ClickException(f"row {row_index + 1}: {error}")
