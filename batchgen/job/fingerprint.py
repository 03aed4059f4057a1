"""Fingerprint: everything that decides the completions of a run, saved so that a later session can compare it.

An unfinished run keeps its RunState in `.state/run.json`, a finished one under `run` in `job.yaml`. Knows the bytes
of input files; knows no rows and no model.

Input has grown when nothing before its old end has changed: files come behind the old ones, or the last old one is
plain JSON lines and longer. Parquet is rewritten to hold more rows, and the end of a compressed file cannot be told
from its bytes, so for these a new file is the way.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from batchgen.errors import InputError
from batchgen.io.input.streams import is_compressed
from batchgen.io.output.folder import OutputFolder
from batchgen.io.remote import Location

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True)
class RunState:
    """What decides the completions of a run."""

    fingerprint: Mapping[str, str]  # key -> value as text; everything but the seed
    mtimes: Mapping[str, int]  # input file -> mtime in ns: with the same size and mtime it is not hashed again
    seed: int
    clock: str  # ISO 8601: what a chat template sees as now

    @property
    def now(self) -> datetime:
        """Return the frozen clock."""
        return datetime.fromisoformat(self.clock)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the content of `.state/run.json`."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Any) -> RunState:
        """Raise ValueError, TypeError or AttributeError if `values` did not come from `to_dict`."""
        state = cls(**values)
        if not isinstance(state.now, datetime) or not state.fingerprint.items():
            raise ValueError("no fingerprint")
        return state

    def differences(
        self, fingerprint: Mapping[str, str], seed: int | None, accepted: Collection[str] = ()
    ) -> Iterator[str]:
        """Yield a line for every value in which a job with this fingerprint differs, except for the `accepted` keys.

        Seed None: the job gives no seed, so that any is accepted.
        """
        old, new = ({key: kept[key] for key in kept if key not in accepted} for kept in (self.fingerprint, fingerprint))
        if seed is not None:
            old["sampling.seed"], new["sampling.seed"] = str(self.seed), str(seed)
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key):
                yield f"{key}: was {old.get(key, 'absent')}, is now {new.get(key, 'absent')}"


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The run that is in the output folder already."""

    state: RunState
    is_finished: bool


def read_earlier_run(folder: OutputFolder) -> EarlierRun | None:
    """Read which run is in a folder; None if there is none, or, with a warning, if its state cannot be read."""
    is_finished = folder.success.exists()
    read, path = (_in_job_yaml, folder.job_yaml) if is_finished else (_in_run_json, folder.run_json)
    try:
        return EarlierRun(RunState.from_dict(read(path)), is_finished)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        log.warning("%s: cannot be read (%s), so the run in this folder cannot be resumed", path, error)
        return None


def _in_run_json(path: Location) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _in_job_yaml(path: Location) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["run"]


_CHUNK_BYTES = 1 << 20
_FILE_DESCRIPTION = re.compile(r"(?s)(.*), (\d+) bytes, blake2b (\w+)")
_KEY = "input file "


def input_key(number: int) -> str:
    """Return the fingerprint's key of input file `number`, counted from 0."""
    return f"{_KEY}{number + 1}"


def describe_file(path: Location, size: int | None, digest: str) -> str:
    """Describe an input file for the fingerprint."""
    return f"{path}, {size} bytes, blake2b {digest}"


def digest_of_start(path: Location, size: int | None) -> str:
    """Hash the first `size` bytes of a file, or the whole file for None."""
    digest = blake2b(digest_size=16)
    left = size if size is not None else sys.maxsize
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def appended_files(old: Mapping[str, str], new: Mapping[str, str], files: Sequence[Location]) -> set[str]:
    """Return the keys in which two fingerprints differ only because rows were appended. Raises InputError."""
    num_old = sum(key.startswith(_KEY) for key in old)
    keys = {input_key(number) for number in range(num_old, len(files))}
    last = input_key(num_old - 1)
    if num_old <= len(files) and old[last] != new[last] and _has_grown(files[num_old - 1], old[last]):
        keys.add(last)
    return keys


def _has_grown(path: Location, old: str) -> bool:
    """Whether a local file still begins with all of its old lines."""
    known = _FILE_DESCRIPTION.fullmatch(old)
    if known is None or known[1] != str(path) or not isinstance(path, Path):
        return False
    with as_input_error(path):
        if is_compressed(path) or path.stat().st_size <= int(known[2]):
            return False
        return digest_of_start(path, int(known[2])) == known[3] and _is_between_lines(path, int(known[2]))


def _is_between_lines(path: Path, at: int) -> bool:
    """Whether a line ends right before byte `at`. Never true of a Parquet file."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return False
        file.seek(max(at - 1, 0))
        before, behind = file.read(1), file.read(1)
    return at == 0 or before == b"\n" or behind == b"\n"


@contextmanager
def as_input_error(path: Location) -> Iterator[None]:
    """Turn an OSError of the block into an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
