"""load_job: validates a job file with its overrides. Opens no model and no input.

Relative paths, also in `--set`, are relative to the job file's folder, so that a job does not depend on the folder
it is started from.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml.nodes import MappingNode

from batchgen.errors import SpecError
from batchgen.sampling_params import contradiction
from batchgen.spec.chat_template import is_file_name, read_template
from batchgen.spec.job_spec import JobSpec
from batchgen.spec.paths import absolute_path, input_path, model_path, output_conflicts
from batchgen.spec.problems import schema_problems, section_keys
from batchgen.spec.yaml_tree import Key, Problem, dotted, find, read_document, set_override, to_plain

logger = logging.getLogger("batchgen")

# Section -> how its `path` becomes absolute.
_RESOLVE = {"model": model_path, "input": input_path, "output": absolute_path}


@dataclass(frozen=True, slots=True)
class Job:
    """A validated job file: every path absolute, every given key with its source."""

    spec: JobSpec
    sources: Mapping[str, str]  # dotted key -> "job" or "--set"; other keys have their defaults
    path: Path  # the job file


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read, override and validate a job file. Raises SpecError with all problems, by line, those of `--set` last."""
    root = read_document(Path(path))
    malformed = _override(root, overrides)
    path = Path(path).absolute()
    values, problems = to_plain(root)
    # A section is null if all its keys are commented out.
    values = {name: {} if value is None and section_keys(name) else value for name, value in values.items()}
    values, wrong_paths = _with_absolute_paths(values, path.parent.resolve(), root)
    values, wrong_templates = _with_chat_template(values, path.parent.resolve(), root)
    spec, wrong_values = _check(values, root)
    problems += wrong_paths + wrong_templates + wrong_values
    if spec and not problems:
        problems += _output_problems(spec, path, root) + _contradictions(spec, root)
    if problems or malformed or spec is None:
        raise SpecError([str(problem) for problem in sorted(problems, key=lambda problem: problem.where)] + malformed)
    _warn_backslashes(spec, root)
    return Job(spec, _sources(root), path)


def _override(root: MappingNode, overrides: Sequence[str]) -> list[str]:
    """Apply the overrides to `root`; the last one of a key wins. Returns the problems of malformed ones."""
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
            return value  # the schema refuses it
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
            path = [resolved(item, (*key, i)) for i, item in enumerate(path)] if is_list else resolved(path, key)
            values = {**values, name: {**section, "path": path}}
    return values, problems


def _with_chat_template(
    values: dict[str, Any], folder: Path, root: MappingNode
) -> tuple[dict[str, Any], list[Problem]]:
    """Replace the name of a chat template file by its text, which a resumed run and a verification then have too."""
    section, key = values.get("input"), ("input", "chat_template")
    text = section.get("chat_template") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(text, str) or not is_file_name(text, folder):
        return values, []
    try:
        template = read_template(Path(absolute_path(text, folder)))
    except SpecError as error:
        return values, [Problem(find(root, key).where, key, str(error))]
    return {**values, "input": {**section, "chat_template": template}}, []


def _check(values: dict[str, Any], root: MappingNode) -> tuple[JobSpec | None, list[Problem]]:
    try:
        return JobSpec.model_validate(values), []
    except ValidationError as error:
        return None, schema_problems(error, root)


def _output_problems(spec: JobSpec, job_path: Path, root: MappingNode) -> list[Problem]:
    key = ("output", "path")
    return [Problem(find(root, key).where, key, conflict) for conflict in output_conflicts(spec, job_path)]


def _contradictions(spec: JobSpec, root: MappingNode) -> list[Problem]:
    """Return the problem of sampling values that cannot be meant together, unless rows may have their own values."""
    given = spec.sampling
    temperature = math.inf if given.temperature is None else given.temperature  # None: the model's own, not known yet
    found = contradiction(temperature=temperature, n=given.n, min_tokens=given.min_tokens, max_tokens=given.max_tokens)
    if found is None or spec.input.sampling is not None:
        return []
    name, _, what = found.partition(": ")
    key = ("sampling", name)
    return [Problem(find(root, key).where, key, what)]


def _sources(root: MappingNode) -> dict[str, str]:
    sources: dict[str, str] = {}
    for name in section_keys():
        inside: list[Key] = [(name, inner) for inner in section_keys(name)]
        for key in inside or [(name,)]:
            found = find(root, key)
            if found.node is not None:
                sources[dotted(key)] = "--set" if found.where.is_override else "job"
    return sources


def _warn_backslashes(spec: JobSpec, root: MappingNode) -> None:
    for i, text in enumerate(spec.sampling.stop):
        if re.search(r"\\[nrt]", text):
            where = find(root, ("sampling", "stop", i)).where
            logger.warning(
                "%s: sampling.stop[%d]: %s has a backslash and a letter; for a line break or tab use double quotes",
                where,
                i,
                text,
            )
