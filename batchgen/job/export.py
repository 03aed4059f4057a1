"""Export the committed rows of an unfinished run together with the columns of its unchanged input."""

from __future__ import annotations

from pathlib import Path

from batchgen.errors import InputError, OutputError
from batchgen.io.input.readers import Input, open_input
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.unfinished import export_with_input
from batchgen.io.remote import Location, state_of
from batchgen.job.fingerprint import RunState, read_earlier_run
from batchgen.spec.load import Job


def export_job(job: Job, folder: OutputFolder, to: Path) -> int:
    """Write the committed rows as the finished run of `job` would write them. Returns the number of rows.

    Raises InputError if the input is not the one that the run in the folder reads, otherwise as `export_committed`.
    """
    earlier = read_earlier_run(folder)
    if earlier is None:
        raise OutputError(f"{folder.path}: holds no run that has generated a row")
    source = open_input(job.spec.input)
    refuse_other_input(source, earlier.state, "export without the input's columns")
    for _ in source.read_row_batches():
        pass  # the types of JSON lines are known only after reading
    return export_with_input(folder, to, source, job.spec.output.prefix, job.spec.output.format)


def refuse_other_input(source: Input, state: RunState, advice: str) -> None:
    """Raise InputError, with the given advice, if the input has changed since a run read it; reads no content."""
    known = [text for key, text in state.fingerprint.items() if key.startswith("input file ")]
    if len(known) != len(source.files):
        raise InputError(f"the run reads {len(known)} input files, the job file names {len(source.files)}")
    for path, text in zip(source.files, known, strict=True):
        if not _is_same(path, text, state):
            raise InputError(f"{path}: has changed since the run began; {advice}")


def _is_same(path: Location, text: str, state: RunState) -> bool:
    """Whether a file still has the same size and the same mtime or ETag."""
    size, stamp = state_of(path)
    has_stamp = text.endswith(stamp) if isinstance(stamp, str) else state.mtimes.get(str(path)) == stamp
    return text.startswith(f"{path}, {size} bytes, ") and has_stamp
