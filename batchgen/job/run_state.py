"""RunState: what one session of a run must know of those before it. Knows how it is kept and how two are compared.

An unfinished run keeps it in `.state/run.json`, a finished one under `run` in `job.yaml`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from batchgen.io.folder import OutputFolder
from batchgen.io.remote import Location

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True)
class RunState:
    """What decides the answers of a run."""

    fingerprint: Mapping[str, str]  # key -> value, in words; all but the seed
    mtimes: Mapping[str, int]  # of the input files, in nanoseconds: one with the same size and time is not hashed again
    seed: int
    clock: str  # ISO 8601: what a chat template sees as now

    @property
    def now(self) -> datetime:
        """The frozen clock."""
        return datetime.fromisoformat(self.clock)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `from_dict`."""
        return asdict(self)

    def to_json(self) -> str:
        """The content of `.state/run.json`."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Any) -> RunState:
        """Raises ValueError, TypeError or AttributeError if `values` is not what `to_dict` gives."""
        state = cls(**values)
        if not isinstance(state.now, datetime) or not state.fingerprint.items():
            raise ValueError("no fingerprint")
        return state

    def differences(
        self, fingerprint: Mapping[str, str], seed: int | None, accepted: Collection[str] = ()
    ) -> Iterator[str]:
        """A line for everything but the `accepted` keys that a job with this fingerprint has otherwise.

        Seed None: any is right.
        """
        old, new = ({key: kept[key] for key in kept if key not in accepted} for kept in (self.fingerprint, fingerprint))
        if seed is not None:
            old["sampling.seed"], new["sampling.seed"] = str(self.seed), str(seed)
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key):
                yield f"{key}: was {old.get(key, 'absent')}, is now {new.get(key, 'absent')}"


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that is in the output folder already."""

    state: RunState
    is_finished: bool


def read_earlier(folder: OutputFolder) -> Earlier | None:
    """The run in a folder; None where there is none, or, which is logged, where it cannot be told which."""
    is_finished = folder.success.exists()
    read, path = (_in_job_yaml, folder.job_yaml) if is_finished else (_in_run_json, folder.run_json)
    try:
        return Earlier(RunState.from_dict(read(path)), is_finished)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        log.warning("%s: does not say which run is in the folder (%s), so it cannot be continued", path, error)
        return None


def _in_run_json(path: Location) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _in_job_yaml(path: Location) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["run"]
