"""Every error that a user can cause or fix. Knows no other room; only `cli.py` turns these into exit codes.

    BatchgenError            what is wrong, where (file, key, line or row, column), what to do
    ├── SpecError            the job file or a `--set` override            (exit 2; may hold many problems)
    ├── InputError           an input file, column or damaged archive      (exit 2)
    │   └── RowError         one row; becomes that row's `error` text      (exit 3 at the end of the run)
    │       └── TemplateError    a template cannot render it               (exit 2 when it renders no row)
    ├── ModelError           a model or tokenizer that cannot be run        (exit 2)
    │   └── CapacityError    the memory cannot hold the model or any row    (exit 2)
    └── OutputError          the output folder                             (exit 2)
        └── StorageError     it failed after generation had begun          (exit 4)

Anything else that escapes is a bug (exit 1).
"""

from __future__ import annotations

from collections.abc import Sequence


class BatchgenError(Exception):
    """A mistake that a user can fix. The message says what, where and what to do; it is shown without a traceback."""

    exit_code = 2


class SpecError(BatchgenError):
    """All problems of a job file, one per line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class InputError(BatchgenError):
    """The input cannot be read as the job file specifies."""


class RowError(InputError):
    """One row cannot be used. The job continues; the message becomes the row's `error`."""


class TemplateError(RowError):
    """The chat template or `input.template` cannot be rendered for one row."""


class ModelError(BatchgenError):
    """The model or its tokenizer is refused because it cannot be run exactly."""


class CapacityError(ModelError):
    """The memory of the device is too small for the job."""


class OutputError(BatchgenError):
    """The output folder cannot be used."""


class StorageError(OutputError):
    """The output cannot be written although generation has begun, for example to a full disk."""

    exit_code = 4
