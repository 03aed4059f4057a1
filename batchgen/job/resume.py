"""Resume: whether a job starts, continues or is done already, and the fingerprint by which that is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from hashlib import blake2b, file_digest
from typing import Any

import torch
import transformers

from batchgen import __version__
from batchgen.errors import InputError, OutputError
from batchgen.io.folder import OutputFolder
from batchgen.io.remote import Location, state_of
from batchgen.job.load import Job
from batchgen.job.resolve import plain
from batchgen.job.run_state import Earlier, RunState
from batchgen.job.target import Target
from batchgen.models.identity import model_identity


class Start(Enum):
    """What a run into a folder is."""

    FRESH = auto()
    RESUMED = auto()
    COMPLETE = auto()  # nothing is left to do


@dataclass(frozen=True, slots=True)
class Session:
    """This session of a run."""

    start: Start
    state: RunState


def decide(
    job: Job, target: Target, files: Sequence[Location], folder: OutputFolder, earlier: Earlier | None, now: datetime
) -> Session:
    """How this session starts, given the run that is in the folder already.

    Raises OutputError naming every difference where that is the run of another job and must not be overwritten.
    """
    old = None if earlier is None else earlier.state
    fingerprint, mtimes = _fingerprint(job, target, files, old)
    fresh = RunState(fingerprint, mtimes, target.params.seed, now.isoformat())
    if earlier is None or old is None:
        return Session(Start.FRESH, fresh)
    differences = list(old.differences(fingerprint, job.spec.sampling.seed))
    if not differences and not earlier.is_finished:
        return Session(Start.RESUMED, RunState(fingerprint, mtimes, old.seed, old.clock))
    if folder.overwrite:
        return Session(Start.FRESH, fresh)
    if not differences:
        return Session(Start.COMPLETE, old)
    kind = "a finished run" if earlier.is_finished else "an unfinished run"
    raise OutputError(
        "\n  ".join([f"{folder.path}: holds {kind} of another job already; what differs:", *differences])
        + "\nrun it with the old values, set output.overwrite: true to replace it, or choose another output.path"
    )


def _fingerprint(
    job: Job, target: Target, files: Sequence[Location], old: RunState | None
) -> tuple[dict[str, str], dict[str, int]]:
    """Everything but the seed that changes answers, and the times of the input files. Raises InputError."""
    spec = job.spec
    mtimes: dict[str, int] = {}
    contents: dict[str, str] = {}
    for number, path in enumerate(files):
        key = f"input file {number + 1}"
        contents[key], mtime = _content(path, key, old)
        if mtime is not None:
            mtimes[str(path)] = mtime
    sampling = {name: getattr(target.params, name) for name in type(spec.sampling).model_fields if name != "seed"}
    return {
        **contents,
        **model_identity(target.info, spec.model),
        **{f"input.{name}": _text(value) for name, value in spec.input if name != "path"},
        **{f"sampling.{name}": _text(value) for name, value in sampling.items()},
        "output.format": spec.output.format,
        "output.prefix": _text(spec.output.prefix),
        "output.token_ids": _text(spec.output.token_ids),
        "engine.max_model_len": _text(target.max_model_len),
        "version of batchgen": __version__,
        "version of torch": str(torch.__version__),
        "version of transformers": transformers.__version__,
    }, mtimes


def _content(path: Location, key: str, old: RunState | None) -> tuple[str, int | None]:
    """An input file in words, and its time. One that has the size and time of the earlier session is not read.

    In a store, what that says of the object, such as its ETag, stands for the content where there is such a thing.
    """
    try:
        size, stamp = state_of(path)
        if isinstance(stamp, str):
            return f"{path}, {size} bytes, {stamp}", None
        start = f"{path}, {size} bytes, blake2b "
        known = old.fingerprint.get(key, "") if old and stamp and old.mtimes.get(str(path)) == stamp else ""
        if known.startswith(start):
            return known, stamp
        with path.open("rb") as file:
            digest = file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
        return start + digest, stamp
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _text(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)
