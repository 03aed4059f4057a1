"""The rows of a job as token ids, for benches that need prompts and no run.

Knows how a run tokenises its input; knows nothing of what is done with the prompts.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from batchgen.console import progress_bar
from batchgen.io.input.readers import open_input
from batchgen.job.run_config import RunConfig, make_encoder, make_sampling
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import TokenisedRows, tokenise


def tokenise_job(config: RunConfig, tokens: Path, *, quiet: bool = True) -> TokenisedRows:
    """Tokenise every row of a job, with the token store in the file `tokens`.

    Raises click.ClickException for a bad row: it would be missing from what is measured.
    """
    encoder, sampling = make_encoder(config, datetime.now()), make_sampling(config, seed=0)
    bar = progress_bar("tokenise", quiet=quiet)
    return tokenise(open_input(config.input), encoder, sampling, _NoBadRows(), TokenStore(tokens), bar=bar)


class _NoBadRows:
    """The bad rows of a job that may have none."""

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        raise click.ClickException(f"row {row_index + 1}: {error}")
