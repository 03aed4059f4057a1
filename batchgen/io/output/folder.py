"""The output folder: its layout, and whether a run may use it.

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
from batchgen.io.output.atomic import as_output_error, atomic_write
from batchgen.io.output.lock import LockMode, RunLock
from batchgen.io.output.remote_lock import RemoteLock
from batchgen.io.remote import Location, RemotePath, locate

_RUN_MARKERS = ("_SUCCESS", "completions", "report.json", ".state")
_OWN_NAMES = (*_RUN_MARKERS, "stats", "report.html", "job.yaml")
# What batchgen writes to completions/ and stats/.
_OWN_FILES = re.compile(r"\.?(part-\d+\.(parquet|jsonl)|(job|groups|steps)\.parquet)(\.tmp)?")


class OutputFolder:
    """`output.path`. Call `check`, then enter `claimed`, and within it call `begin` and at the end `mark_success`."""

    def __init__(self, path: str | Path, overwrite: bool = False, lock: LockMode = "auto") -> None:
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
        lock_path = self.state / "lock"
        self.lock = RunLock(lock_path, lock) if isinstance(lock_path, Path) else RemoteLock(lock_path, lock)
        self._checked: tuple[bool, bytes | None] | None = None  # what identifies the earlier run that `check` found
        # Holds the journal of the unfinished run that this one replaces until `begin`. A store cannot rename: there
        # the journal is removed at once.
        self._replaced_journal = self.state / "earlier-journal" if isinstance(self.state, Path) else None
        self._is_resumed = False
        self._is_reopened = False
        self._keeps_state = False
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def scratch(self) -> Path:
        """A local folder for temporary files of this session. Exists from `claim` on."""
        if isinstance(self.state, Path):
            return self.state
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="batchgen-")
        return Path(self._temporary.name)

    def check(self, files_read: Iterable[Location], *, is_known: bool = False) -> None:
        """Raise OutputError if the folder cannot be written, holds another run, or holds a file that this run reads.

        `is_known`: the caller has identified the run in the folder, and decides about it. Changes nothing.
        """
        with as_output_error(self.path):
            self._checked = self._run_identity()
            self._refuse_own_input(files_read)
            self._refuse_unwritable()
            if not is_known:
                self._refuse_other_run()
            self._refuse_foreign()

    def claim(self, *, resume: bool = False, reopen: bool = False) -> None:
        """Lock the folder for this run; files of an earlier run are kept until `begin`.

        `resume` continues with the earlier run's journal; `reopen` keeps its results until they are replaced. Call
        `check` first. Raises OutputError, also if another run is active or has changed the folder since `check`.
        """
        with as_output_error(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
            if self._checked not in (None, self._run_identity()):
                self.lock.release()
                raise OutputError(f"{self.path}: another run has just used this folder; run the command again")
            self._is_resumed = self._keeps_state = resume
            self._is_reopened = reopen
            self._restore_journal()
            if self._replaced_journal is not None and not resume and self.run_json.exists() and self.journal.exists():
                Path(str(self.journal)).rename(self._replaced_journal)
            self._clean_state()
            self.journal.mkdir(exist_ok=True)

    def begin(self, run_state: str) -> None:
        """Write `run_state` to `.state/run.json` just before the first row runs; from then on the run can be resumed.

        With `overwrite`, first removes what an earlier run wrote, and nothing else. Raises OutputError.
        """
        with as_output_error(self.path):
            if not self._is_resumed:
                _remove(self.work_json)
                _remove(self.run_json)  # before the journal: run.json must never be found with another run's rows
                if self._replaced_journal is not None:
                    _remove(self._replaced_journal)
            if self.overwrite and not self._is_resumed and not self._is_reopened:
                for name in _OWN_NAMES:  # _SUCCESS first: a half-removed run must not look finished
                    if name != self.state.name:
                        _remove(self.path / name)
        with atomic_write(self.run_json) as temporary:
            temporary.write_text(run_state, encoding="utf-8")
        self._keeps_state = True
        with as_output_error(self.path):
            _remove(self.success)
            self.completions.mkdir(exist_ok=True)
            self.stats.mkdir(exist_ok=True)

    @contextmanager
    def claimed(self, *, resume: bool = False, reopen: bool = False) -> Iterator[None]:
        """Hold the folder for the block (see `claim`); a run that ends before `begin` leaves nothing behind."""
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
        """Write a small UTF-8 file in the folder atomically. Raises OutputError."""
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def mark_success(self) -> None:
        """Write `_SUCCESS`, then remove `.state/`. Call it last. Raises OutputError."""
        self.lock.check()
        self.write_text(self.success.name, "")
        self._remove_state()

    def _run_identity(self) -> tuple[bool, bytes | None]:
        """Return what tells the run in the folder from any other: whether it is finished, and its run.json."""
        return self.success.exists(), self.run_json.read_bytes() if self.run_json.is_file() else None

    def _restore_journal(self) -> None:
        """Put back the journal of a run whose replacement never began."""
        if self._replaced_journal is not None and self._replaced_journal.exists():
            _remove(self.journal)
            self._replaced_journal.rename(self._replaced_journal.with_name(self.journal.name))

    def _clean_state(self) -> None:
        """Remove everything from `.state/` but the lock and the complete files of a run that can be resumed."""
        kept = {self.lock.path}
        if self._is_resumed:
            kept |= {self.journal, self.run_json, self.work_json}
        elif self._replaced_journal is not None and self._replaced_journal.exists():
            kept |= {self._replaced_journal, self.run_json, self.work_json}
        for path in self.state.iterdir():
            if path not in kept and not self.lock.is_used_by_others(path):
                _remove(path)
        for path in self.journal.glob(".*.tmp"):
            path.unlink()

    def _remove_state(self) -> None:
        with as_output_error(self.state):
            if self.lock.is_lost():
                return
            self._is_resumed = self._replaced_journal is not None and self._replaced_journal.exists()
            self._restore_journal()
            self._clean_state()
            self.lock.release()
            with suppress(OSError):  # not empty: the next run is using it, or another run can be resumed
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
        """Refuse a local path that cannot become a writable folder; a store shows it when the lock is taken."""
        if isinstance(self.path, RemotePath):
            return
        existing = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise OutputError(f"{self.path}: {existing} is a file; output.path must be a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise OutputError(f"{self.path}: {existing} is not writable")

    def _refuse_other_run(self) -> None:
        markers = [name for name in _RUN_MARKERS if (self.path / name).exists()]
        if markers and markers != [self.state.name] and not self.overwrite:  # .state alone: no row was generated
            kind = "a finished run" if self.success.exists() else "another run"
            raise OutputError(
                f"{self.path}: already holds {kind} ({', '.join(markers)}); "
                "set output.overwrite: true to replace it, or choose another output.path"
            )

    def _refuse_foreign(self) -> None:
        """Refuse to replace files that batchgen did not write: a user's job.yaml, or a file beside the part files."""
        foreign = [path for name in ("completions", "stats") for path in _foreign_files(self.path / name)]
        if not any((self.path / name).exists() for name in _RUN_MARKERS):
            foreign += [path for name in _OWN_NAMES if (path := self.path / name).exists()]
        if foreign:
            raise OutputError(f"{foreign[0]}: not written by batchgen, so not replaced; choose another output.path")


def _real(path: Location) -> str:
    """Return the same text for all paths that lead to the same file or folder."""
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


def _foreign_files(folder: Location) -> list[Location]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() or not _OWN_FILES.fullmatch(path.name)]


def _remove(path: Location) -> None:
    if isinstance(path, RemotePath):
        path.remove()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
