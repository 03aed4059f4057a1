"""RunArtifact: the report, tables and resolved job of a finished run, in memory or read back from its output folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from batchgen.errors import OutputError
from batchgen.io.remote import Location
from batchgen.stats.report import RunReport
from batchgen.stats.tables import GROUPS, STEPS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunArtifact:
    """Everything that the page of a run is rendered from."""

    report: RunReport
    groups: pa.Table  # columns: tables.GROUPS
    steps: pa.Table  # columns: tables.STEPS
    job: Mapping[str, Any]  # the resolved job.yaml: `job` and `sources`


def read_artifact(folder: Location) -> RunArtifact:
    """Read a finished run. Raises OutputError, which names the folder or the file that cannot be used."""
    return RunArtifact(
        report=read_report(folder),
        groups=_read(folder / "stats/groups.parquet", partial(_table, schema=GROUPS)),
        steps=_read(folder / "stats/steps.parquet", partial(_table, schema=STEPS)),
        job=_read(folder / "job.yaml", _resolved_job),
    )


def read_report(folder: Location) -> RunReport:
    """Read only the `report.json` of a finished run. Raises OutputError."""
    if not (folder / "_SUCCESS").exists():
        raise OutputError(f"{folder}: no finished run: there is no _SUCCESS in it; run its job to the end first")
    return _read(folder / "report.json", lambda path: RunReport.from_json(path.read_text(encoding="utf-8")))


def _table(path: Location, schema: pa.Schema) -> pa.Table:
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    if not table.schema.equals(schema):
        raise ValueError(f"its columns are {', '.join(table.schema.names)}; expected {', '.join(schema.names)}")
    return table


def _resolved_job(path: Location) -> Mapping[str, Any]:
    document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    match document:
        case {"job": {"model": {"path": _}, "engine": {"prefix_cache": _}}, "sources": {}}:
            return document  # type: ignore[no-any-return]
    raise ValueError("not a job.yaml that batchgen wrote into an output folder")


def _read(path: Location, read: Callable[[Location], T]) -> T:
    try:
        return read(path)
    except FileNotFoundError:
        raise OutputError(f"{path}: missing; was the run written by another version of batchgen?") from None
    except (OSError, ValueError, pa.ArrowException, YAMLError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
