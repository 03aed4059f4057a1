"""Every error a user can cause or mend. Knows no other room; only `cli.py` turns these into exit codes.

    BatchgenError            what is wrong, where (file, key, line or row, column), what to do
    ├── SpecError            the job file or a `--set` override            (exit 2; may hold many problems)
    ├── InputError           an input file, column or damaged archive      (exit 2)
    │   └── RowError         one row; becomes that row's `error` text      (exit 3 at the end of the run)
    │       └── TemplateError    a template refused it                     (exit 2 when it refuses every row)
    ├── ModelError           a model or tokenizer we cannot or will not run (exit 2)
    │   └── CapacityError    the model, or every row, does not fit memory  (exit 2)
    └── OutputError          the output folder                             (exit 2)
        └── StorageError     it failed after generation had begun          (exit 4)

Anything else that escapes is a bug (exit 1).
"""

from __future__ import annotations

from collections.abc import Sequence


class BatchgenError(Exception):
    """A mistake a user can mend. The message says what, where and what to do; it is shown without a traceback."""

    exit_code = 2


class SpecError(BatchgenError):
    """All problems of a job file at once, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class InputError(BatchgenError):
    """The input cannot be read as the job file says."""


class RowError(InputError):
    """One row cannot be used. The job goes on; the text becomes the row's `error`."""


class TemplateError(RowError):
    """A template, the model's or the user's, cannot be rendered for one row."""


class ModelError(BatchgenError):
    """The model or its tokenizer cannot be run exactly, so it is refused."""


class CapacityError(ModelError):
    """The memory of the device cannot hold what the job needs."""


class OutputError(BatchgenError):
    """The output folder cannot be used."""


class StorageError(OutputError):
    """The output cannot be written although generation has begun, for example to a full disk."""

    exit_code = 4
