"""Results: every output on its way to the writer, counted, and the limit on bad rows."""

from __future__ import annotations

from batchgen.errors import InputError
from batchgen.io.readers import Input
from batchgen.io.writers import ResultWriter
from batchgen.job_spec import JobSpec, OutputSpec
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.report import RowCounts


def max_errors(spec: JobSpec) -> int | None:
    """How many bad rows a job bears; None: any number."""
    return 0 if spec.on_error == "stop" else spec.max_errors


class Results:
    """Takes the outputs of a run in any order."""

    def __init__(self, writer: ResultWriter, spec: JobSpec) -> None:
        self.counts = RowCounts()
        self._writer = writer
        self._max_errors = max_errors(spec)

    def add(self, output: RequestOutput) -> None:
        """Write an output. Raises InputError when there are more bad rows than the job allows."""
        self.counts.observe(output)
        self._writer.write(output)
        if self._max_errors is not None and self.counts.num_failed > self._max_errors:
            self._writer.commit()
            raise InputError(
                f"stopped at bad row {self.counts.num_failed} (max_errors {self._max_errors}): {output.error}; "
                "mend the row, or set on_error: continue and a larger max_errors"
            )

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        """A row that never ran."""
        self.add(
            RequestOutput(
                row_index,
                FinishReason.ERROR,
                error=error,
                prompt_tokens=prompt_tokens,
                completion_tokens=None if prompt_tokens is None else 0,
                cached_tokens=None if prompt_tokens is None else 0,
            )
        )

    def commit_if_due(self) -> None:
        """Let a commit happen by time also while no row ends."""
        self._writer.commit_if_due()

    def finish(self, source: Input, output: OutputSpec) -> None:
        """Write the parts in input order."""
        self._writer.finish(source, output.prefix, output.format)
