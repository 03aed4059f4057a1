"""The output folder: what lies where, whether it may be used, and how a file gets there whole or not at all.

Knows paths, on the local disk and in a store; knows nothing of rows.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchgen.errors import OutputError
from batchgen.io.output.lock import RunLock
from batchgen.io.output.remote_lock import RemoteLock
from batchgen.io.remote import Location, RemotePath, locate

_SIGNS_OF_A_RUN = ("_SUCCESS", "completions", "report.json", ".state")
_OURS = (*_SIGNS_OF_A_RUN, "stats", "report.html", "job.yaml")
# in completions/ and stats/
_OUR_PARTS = re.compile(r"\.?(part-\d+\.(parquet|jsonl)|(job|groups|steps)\.parquet)(\.tmp)?")


class OutputFolder:
    """`output.path`, used in this order: `check`, `claimed`, and in it `begin` and last `mark_success`."""

    def __init__(self, path: str | Path, overwrite: bool = False) -> None:
        self.path = locate(path)
        self.overwrite = overwrite
        self.completions = self.path / "completions"
        self.stats = self.path / "stats"
        self.report_json = self.path / "report.json"
        self.job_yaml = self.path / "job.yaml"
        self.success = self.path / "_SUCCESS"
        self.state = self.path / ".state"
        self.journal = self.state / "journal"
        self.run_json = self.state / "run.json"
        self.work_json = self.state / "work.json"
        lock = self.state / "lock"
        self.lock = RunLock(lock) if isinstance(lock, Path) else RemoteLock(lock)
        self._seen: tuple[bool, bytes | None] | None = None  # the earlier run as `check` found it
        # The journal of an unfinished run that this one is to replace. A store has no rename: there it goes at once.
        self._set_aside = self.state / "earlier-journal" if isinstance(self.state, Path) else None
        self._is_resumed = False
        self._is_reopened = False
        self._keeps_state = False
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def scratch(self) -> Path:
        """A local folder for what this session alone needs; there is one from `claim` on."""
        if isinstance(self.state, Path):
            return self.state
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="batchgen-")
        return Path(self._temporary.name)

    def check(self, files_read: Iterable[Location], *, is_known: bool = False) -> None:
        """Refuse a folder that cannot be written, holds another run, or holds a file that this run reads.

        `is_known`: the caller knows which run is in it, and decides. Changes nothing. Raises OutputError.
        """
        with _as_output_error(self.path):
            self._seen = self._earlier()
            self._refuse_own_input(files_read)
            self._refuse_unwritable()
            if not is_known:
                self._refuse_other_run()
            self._refuse_foreign()

    def claim(self, *, resume: bool = False, reopen: bool = False) -> None:
        """Take the folder for this run; all that an earlier one left stays until `begin`.

        With `resume` its journal is this run's own; with `reopen` its results stay until they are written again. Call
        `check` first. Raises OutputError, also if another run is at work or has come in between.
        """
        with _as_output_error(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
            if self._seen not in (None, self._earlier()):
                self.lock.release()
                raise OutputError(f"{self.path}: another run has just been in this folder; start again")
            self._is_resumed = self._keeps_state = resume
            self._is_reopened = reopen
            self._restore_set_aside()
            if self._set_aside is not None and not resume and self.run_json.exists() and self.journal.exists():
                Path(str(self.journal)).rename(self._set_aside)
            self._clean_state()
            self.journal.mkdir(exist_ok=True)

    def begin(self, run_state: str) -> None:
        """The first row is about to run: `run_state` goes to `.state/run.json`, and from now on the run can be resumed.

        With `overwrite`, first removes what an earlier run wrote, and nothing else. Raises OutputError.
        """
        with _as_output_error(self.path):
            if not self._is_resumed:
                _remove(self.work_json)
                _remove(self.run_json)  # before its journal: the state of no run must stand beside the rows of another
                if self._set_aside is not None:
                    _remove(self._set_aside)
            if self.overwrite and not self._is_resumed and not self._is_reopened:
                for name in _OURS:  # _SUCCESS goes first: a half-removed run is no finished one
                    if name != self.state.name:
                        _remove(self.path / name)
        with atomic_write(self.run_json) as temporary:
            temporary.write_text(run_state, encoding="utf-8")
        self._keeps_state = True
        with _as_output_error(self.path):
            _remove(self.success)
            self.completions.mkdir(exist_ok=True)
            self.stats.mkdir(exist_ok=True)

    @contextmanager
    def claimed(self, *, resume: bool = False, reopen: bool = False) -> Iterator[None]:
        """`claim` for the block; a run that ends before `begin` leaves nothing in the next one's way."""
        self.claim(resume=resume, reopen=reopen)
        try:
            yield
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
            if self._keeps_state:
                self.lock.release()
            else:
                self._remove_state()

    def write_text(self, name: str, text: str) -> None:
        """Put a small UTF-8 file into the folder, whole or not at all. Raises OutputError."""
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def mark_success(self) -> None:
        """Write `_SUCCESS` and remove `.state/`, which is needed no longer. Call it last. Raises OutputError."""
        self.write_text(self.success.name, "")
        self._remove_state()

    def _earlier(self) -> tuple[bool, bytes | None]:
        """What tells one earlier run from another."""
        return self.success.exists(), self.run_json.read_bytes() if self.run_json.is_file() else None

    def _restore_set_aside(self) -> None:
        """Undo what a run did that meant to replace another one and never began."""
        if self._set_aside is not None and self._set_aside.exists():
            _remove(self.journal)
            self._set_aside.rename(self._set_aside.with_name(self.journal.name))

    def _clean_state(self) -> None:
        """Leave of `.state/` the lock, and of a run that can be resumed what is whole."""
        kept = {self.lock.path}
        if self._is_resumed:
            kept |= {self.journal, self.run_json, self.work_json}
        elif self._set_aside is not None and self._set_aside.exists():
            kept |= {self._set_aside, self.run_json, self.work_json}
        for path in self.state.iterdir():
            if path not in kept:
                _remove(path)
        for path in self.journal.glob(".*.tmp"):
            path.unlink()

    def _remove_state(self) -> None:
        with _as_output_error(self.state):
            self._is_resumed = self._set_aside is not None and self._set_aside.exists()
            self._restore_set_aside()
            self._clean_state()
            self.lock.release()
            with suppress(OSError):  # not empty: the next run has it already, or another one can be resumed
                self.state.rmdir()

    def _refuse_own_input(self, files_read: Iterable[Location]) -> None:
        folder = _real(self.path)
        for file in files_read:
            real = _real(file)
            if real == folder:
                raise OutputError(f"{self.path}: output.path is the file {file} that the job reads; choose another")
            if real.startswith(f"{folder.rstrip('/')}/"):
                raise OutputError(f"{self.path}: output.path holds {file}, which the job reads; choose another folder")

    def _refuse_unwritable(self) -> None:
        """A store is asked by taking the lock."""
        if isinstance(self.path, RemotePath):
            return
        existing = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise OutputError(f"{self.path}: {existing} is a file; output.path must be a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise OutputError(f"{self.path}: {existing} is not writable")

    def _refuse_other_run(self) -> None:
        signs = [name for name in _SIGNS_OF_A_RUN if (self.path / name).exists()]
        if signs and signs != [self.state.name] and not self.overwrite:  # only .state: no row of it was generated
            kind = "a finished run" if self.success.exists() else "another run"
            raise OutputError(
                f"{self.path}: holds {kind} already ({', '.join(signs)}); "
                "set output.overwrite: true to replace it, or choose another output.path"
            )

    def _refuse_foreign(self) -> None:
        """Refuse to replace what batchgen did not write: a user's own job.yaml, or a file among the part files."""
        foreign = [path for name in ("completions", "stats") for path in _foreign_files(self.path / name)]
        if not any((self.path / name).exists() for name in _SIGNS_OF_A_RUN):
            foreign += [path for name in _OURS if (path := self.path / name).exists()]
        if foreign:
            raise OutputError(f"{foreign[0]}: not written by batchgen, but in its way; choose another output.path")


@contextmanager
def atomic_write(path: Location) -> Iterator[Path]:
    """Give a local temporary path; when the block ends well, that file is made durable and takes the name `path`.

    A kill at any instant leaves the old `path` or the new one. Raises OutputError if the disk or the store refuses.
    """
    write = _renamed(path) if isinstance(path, Path) else _sent(path)
    with _as_output_error(path), write as temporary:
        yield temporary


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _sent(path: RemotePath) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="batchgen-") as folder:
        temporary = Path(folder, path.name)
        yield temporary
        path.put(temporary)


@contextmanager
def _as_output_error(path: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _real(path: Location) -> str:
    """The same text for all names of a place."""
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


def _foreign_files(folder: Location) -> list[Location]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() or not _OUR_PARTS.fullmatch(path.name)]


def _remove(path: Location) -> None:
    if isinstance(path, RemotePath):
        path.remove()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
