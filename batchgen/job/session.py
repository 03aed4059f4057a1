"""Session: whether a job starts, continues or is complete already, decided by comparing fingerprints."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

import torch
import transformers

from batchgen import __version__
from batchgen.errors import OutputError
from batchgen.io.output.finished import import_results, remove_failed
from batchgen.io.output.folder import OutputFolder
from batchgen.io.remote import Location, state_of
from batchgen.job.fingerprint import (
    EarlierRun,
    RunState,
    appended_files,
    as_input_error,
    describe_file,
    digest_of_start,
    input_key,
)
from batchgen.job.run_config import RunConfig
from batchgen.job.settings import plain
from batchgen.models.identity import model_identity
from batchgen.spec.job_spec import OutputSpec
from batchgen.stats.artifact import read_report

_MAX_TEXT_CHARS, _TEXT_CHARS = 1000, 100  # of a value in the fingerprint, and of one that is longer


class Start(Enum):
    """How a session starts."""

    FRESH = auto()
    RESUMED = auto()
    REOPENED = auto()  # it was finished; rows were appended, or failed rows run again
    COMPLETE = auto()  # nothing is left to do


@dataclass(frozen=True, slots=True)
class Session:
    """One session of a run: a run that is interrupted and resumed has several."""

    start: Start
    state: RunState
    only_failed: bool = False

    def claimed(self, folder: OutputFolder) -> AbstractContextManager[None]:
        """Take the output folder for this session, keeping what it needs of earlier ones."""
        return folder.claimed(resume=self.start is Start.RESUMED, reopen=self.start is Start.REOPENED)

    def prepare_journal(self, folder: OutputFolder, output: OutputSpec) -> None:
        """Leave in the journal exactly the rows that this session need not run. Raises OutputError."""
        if self.start is Start.REOPENED:
            import_results(folder, output.prefix, output.format, without_failed=self.only_failed)
        elif self.start is Start.RESUMED and self.only_failed:
            remove_failed(folder)


def open_session(
    config: RunConfig,
    files: Sequence[Location],
    folder: OutputFolder,
    earlier: EarlierRun | None,
    now: datetime,
    *,
    only_failed: bool = False,
) -> Session:
    """Decide how this session starts, given the run that is in the folder already (`earlier`).

    The seed of a job that gives none is drawn here for a fresh run, and is the earlier one's for a continued run.
    Raises OutputError naming every difference where the folder holds the run of another job that must not be
    overwritten.
    """
    if earlier is None:
        if only_failed:
            raise OutputError(f"{folder.path}: holds no run whose failed rows could run again; omit --only")
        return Session(Start.FRESH, _fresh_state(config, *_fingerprint(config, files, None), now))
    old = earlier.state
    fingerprint, mtimes = _fingerprint(config, files, old)
    appended = appended_files(old.fingerprint, fingerprint, files)
    differences = list(old.differences(fingerprint, config.sampling.seed, appended))
    continued = RunState(fingerprint, mtimes, old.seed, old.clock)
    if not differences and not earlier.is_finished:
        return Session(Start.RESUMED, continued, only_failed)
    if not differences and only_failed and read_report(folder.path).num_failed:
        return Session(Start.REOPENED, continued, only_failed)
    if folder.overwrite and not only_failed:
        return Session(Start.FRESH, _fresh_state(config, fingerprint, mtimes, now))
    if not differences:
        return Session(Start.REOPENED, continued) if appended else Session(Start.COMPLETE, old)
    kind = "a finished run" if earlier.is_finished else "an unfinished run"
    raise OutputError(
        "\n  ".join([f"{folder.path}: holds {kind} of another job already; what differs:", *differences])
        + "\nrun it with the old values, set output.overwrite: true to replace it, or choose another output.path"
    )


def _fresh_state(config: RunConfig, fingerprint: dict[str, str], mtimes: dict[str, int], now: datetime) -> RunState:
    seed = config.sampling.seed
    # 32 bits are enough for a drawn seed; a seed that the user gives may be longer.
    return RunState(fingerprint, mtimes, secrets.randbits(32) if seed is None else seed, now.isoformat())


def _fingerprint(
    config: RunConfig, files: Sequence[Location], old: RunState | None
) -> tuple[dict[str, str], dict[str, int]]:
    """Return everything but the seed that changes completions, and the mtimes of the input files. Raises InputError."""
    spec = config.job.spec
    mtimes: dict[str, int] = {}
    contents: dict[str, str] = {}
    for number, path in enumerate(files):
        key = input_key(number)
        contents[key], mtime = _content(path, key, old)
        if mtime is not None:
            mtimes[str(path)] = mtime
    sampling = {name: getattr(config.sampling, name) for name in type(spec.sampling).model_fields if name != "seed"}
    return {
        **contents,
        **model_identity(config.model, spec.model),
        **{f"input.{name}": _text(value) for name, value in spec.input if name != "path"},
        **{f"sampling.{name}": _text(value) for name, value in sampling.items()},
        "output.format": spec.output.format,
        "output.prefix": _text(spec.output.prefix),
        "output.token_ids": _text(spec.output.token_ids),
        "output.reasoning": _text(spec.output.reasoning),
        "output.reasoning_tags": _text(None if config.reasoning is None else config.reasoning.tags[:2]),
        "engine.max_model_len": _text(config.max_model_len),
        "version of batchgen": __version__,
        "version of torch": str(torch.__version__),
        "version of transformers": transformers.__version__,
    }, mtimes


def _content(path: Location, key: str, old: RunState | None) -> tuple[str, int | None]:
    """Describe the content of an input file; returns its mtime too. A file with the earlier size and mtime is not read.

    In an object store the object's ETag or similar stands for the content, where the store has one.
    """
    with as_input_error(path):
        size, stamp = state_of(path)
        if isinstance(stamp, str):
            return f"{path}, {size} bytes, {stamp}", None
        known = old.fingerprint.get(key, "") if old and stamp and old.mtimes.get(str(path)) == stamp else ""
        if known.startswith(describe_file(path, size, "")):
            return known, stamp
        return describe_file(path, size, digest_of_start(path, size)), stamp


def _text(value: Any) -> str:
    """Return a value as text; of a long one, such as a chat template, the beginning and a hash of all of it."""
    text = json.dumps(plain(value), ensure_ascii=False)
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[:_TEXT_CHARS]}… ({len(text)} characters, blake2b {digest})"
