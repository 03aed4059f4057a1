"""Paths of a job file: expands variables and `~`, makes paths absolute, keeps the output apart from all other paths.

Knows names and links; expands no pattern and opens no file.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from batchgen.errors import SpecError
from batchgen.spec.job_spec import JobSpec

_LOCAL_URL = re.compile("^(file|local)://")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def absolute_path(text: str, folder: Path) -> str:
    """Return `text`, from a file in `folder`, as an absolute path; only `file://` URLs change. Raises SpecError."""
    text = _LOCAL_URL.sub("", _expand(text))
    if "://" in text:
        return text
    path = Path(text)
    # `folder` has no links, so `..` means its parent. A later `..` is resolved by the file system.
    while path.parts[:1] == ("..",):
        folder, path = folder.parent, Path(*path.parts[1:])
    return str(folder / path)


def model_path(text: str, folder: Path) -> str:
    """Like `absolute_path`, but text that neither looks like a path nor exists in `folder` is kept: it is a hub id."""
    text = _expand(text)
    is_local = text.startswith(("./", "../", "/")) or text.endswith(".gguf") or (folder / text).exists()
    return absolute_path(text, folder) if is_local else text


def input_path(text: str, folder: Path) -> str:
    """Like `absolute_path`, but if `text` is a glob pattern, `folder` is escaped, so that only `text` is a pattern."""
    path = absolute_path(text, folder)
    is_pattern = glob.has_magic(text) and not os.path.exists(path)
    return absolute_path(text, Path(glob.escape(str(folder)))) if is_pattern else path


def output_conflicts(spec: JobSpec, job_path: Path) -> Iterator[str]:
    """Yield what the output folder would overwrite, or mix with, among the paths of the job.

    A glob pattern is compared as text; the files that it matches are compared once they are known.
    """
    output = spec.output.path
    inputs = [spec.input.path] if isinstance(spec.input.path, str) else spec.input.path
    for path in inputs:
        if _contains(output, path) or _contains(path, output):
            yield f"would mix with the input {path}; choose another folder"
    if os.path.isabs(spec.model.path) and _contains(output, spec.model.path):
        yield f"would contain the model {spec.model.path}; choose another folder"
    if _contains(output, str(job_path)):
        yield f"would contain the job file {job_path}; choose another folder"


def _expand(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise SpecError([f"the environment variable {match[1]} is {'not set' if found is None else 'empty'}"])
        return found

    expanded = os.path.expanduser(_VARIABLE.sub(value, text))
    if "$" in expanded:
        raise SpecError([f"$ without a variable in {expanded}; write ${{NAME}} for an environment variable"])
    if expanded.startswith("~"):
        raise SpecError([f"no home folder for {expanded.split('/')[0]}; if a name starts with ~, write ./~"])
    if "\0" in expanded:
        raise SpecError(["a path cannot contain the character U+0000"])
    return expanded


def _contains(folder: str, path: str) -> bool:
    """Return whether `path` is `folder` or is inside it, with links resolved."""
    if "://" in folder or "://" in path:
        return f"{path}/".startswith(f"{folder.rstrip('/')}/")
    folder, path = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([folder, path]) == folder
