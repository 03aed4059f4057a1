"""load_job: a job file and its overrides to one checked Job. Opens no model and no input.

Relative paths start at the job file's folder, those of `--set` too, so that a job means the same wherever it is
started from.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml.nodes import MappingNode

from batchgen.errors import SpecError
from batchgen.spec.job_spec import JobSpec
from batchgen.spec.paths import absolute_path, input_path, model_path, output_conflicts
from batchgen.spec.problems import schema_problems, section_keys
from batchgen.spec.yaml_tree import Key, Problem, dotted, find, read_document, set_override, to_plain

logger = logging.getLogger("batchgen")

# Section -> how its `path` becomes absolute.
_RESOLVE = {"model": model_path, "input": input_path, "output": absolute_path}


@dataclass(frozen=True, slots=True)
class Job:
    """What the user asked: every path absolute, every given key with its source."""

    spec: JobSpec
    sources: Mapping[str, str]  # dotted key -> "job" or "--set"; a key that is not here has its default
    path: Path  # the job file


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read, override and check a job file. Raises SpecError with every problem, the file's by line, then `--set`."""
    root = read_document(Path(path))
    malformed = _override(root, overrides)
    path = Path(path).absolute()
    values, problems = to_plain(root)
    # A section whose keys are all commented out.
    values = {name: {} if value is None and section_keys(name) else value for name, value in values.items()}
    values, wrong_paths = _with_absolute_paths(values, path.parent.resolve(), root)
    spec, wrong_values = _check(values, root)
    problems += wrong_paths + wrong_values
    if spec and not problems:
        problems += _output_problems(spec, path, root)
    if problems or malformed or spec is None:
        raise SpecError([str(problem) for problem in sorted(problems, key=lambda problem: problem.where)] + malformed)
    _warn_of_backslashes(spec, root)
    return Job(spec, _sources(root), path)


def _override(root: MappingNode, overrides: Sequence[str]) -> list[str]:
    """Apply the overrides to `root`, the last of a key winning. Returns what is wrong with the unreadable ones."""
    malformed: list[str] = []
    for override in overrides:
        try:
            set_override(root, override)
        except SpecError as error:
            malformed += error.problems
    return malformed


def _with_absolute_paths(
    values: dict[str, Any], folder: Path, root: MappingNode
) -> tuple[dict[str, Any], list[Problem]]:
    problems: list[Problem] = []

    def resolved(value: Any, key: Key) -> Any:
        if not isinstance(value, str) or not value:
            return value  # for the schema to refuse
        try:
            return _RESOLVE[str(key[0])](value, folder)
        except SpecError as error:
            problems.append(Problem(find(root, key).where, key, str(error)))
            return value

    for name in _RESOLVE:
        section = values.get(name)
        if isinstance(section, dict) and "path" in section:
            path, key = section["path"], (name, "path")
            is_list = isinstance(path, list)
            path = [resolved(item, (*key, at)) for at, item in enumerate(path)] if is_list else resolved(path, key)
            values = {**values, name: {**section, "path": path}}
    return values, problems


def _check(values: dict[str, Any], root: MappingNode) -> tuple[JobSpec | None, list[Problem]]:
    try:
        return JobSpec.model_validate(values), []
    except ValidationError as error:
        return None, schema_problems(error, root)


def _output_problems(spec: JobSpec, job_path: Path, root: MappingNode) -> list[Problem]:
    key = ("output", "path")
    return [Problem(find(root, key).where, key, conflict) for conflict in output_conflicts(spec, job_path)]


def _sources(root: MappingNode) -> dict[str, str]:
    sources: dict[str, str] = {}
    for name in section_keys():
        inside: list[Key] = [(name, inner) for inner in section_keys(name)]
        for key in inside or [(name,)]:
            found = find(root, key)
            if found.node is not None:
                sources[dotted(key)] = "--set" if found.where.is_override else "job"
    return sources


def _warn_of_backslashes(spec: JobSpec, root: MappingNode) -> None:
    for position, text in enumerate(spec.sampling.stop):
        if re.search(r"\\[nrt]", text):
            where = find(root, ("sampling", "stop", position)).where
            logger.warning(
                "%s: sampling.stop[%d]: %s holds a backslash and a letter; for a line break or tab use double quotes",
                where,
                position,
                text,
            )
