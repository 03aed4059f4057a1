"""Paths of a job file: variables and `~` filled in, relative ones made absolute, the output's apart from all others.

Looks at names and links only; expands no pattern and opens nothing.
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
    """The path that `text` names when it is written in a file of `folder`; a URL stays, unless it is
    one of a local file. Raises SpecError."""
    text = _LOCAL_URL.sub("", _expand(text))
    if "://" in text:
        return text
    path = Path(text)
    # `folder` is free of links, so its parent is what `..` means there. Later `..` are left to the file system.
    while path.parts[:1] == ("..",):
        folder, path = folder.parent, Path(*path.parts[1:])
    return str(folder / path)


def model_path(text: str, folder: Path) -> str:
    """As `absolute_path`, but text that neither looks like a path nor exists in `folder` is a hub id, which stays."""
    text = _expand(text)
    is_local = text.startswith(("./", "../", "/")) or text.endswith(".gguf") or (folder / text).exists()
    return absolute_path(text, folder) if is_local else text


def input_path(text: str, folder: Path) -> str:
    """As `absolute_path`, but where `text` is a pattern the folder before it is none, whatever its name."""
    path = absolute_path(text, folder)
    is_pattern = glob.has_magic(text) and not os.path.exists(path)
    return absolute_path(text, Path(glob.escape(str(folder)))) if is_pattern else path


def output_conflicts(spec: JobSpec, job_path: Path) -> Iterator[str]:
    """Why the output folder may not be where it is: what it would write over, or be read from.

    A pattern is compared as it is written; the reader knows the files that it names and compares those.
    """
    output = spec.output.path
    inputs = [spec.input.path] if isinstance(spec.input.path, str) else spec.input.path
    for path in inputs:
        if _holds(output, path) or _holds(path, output):
            yield f"would mix with the input {path}; choose another folder"
    if os.path.isabs(spec.model.path) and _holds(output, spec.model.path):
        yield f"would hold the model {spec.model.path}; choose another folder"
    if _holds(output, str(job_path)):
        yield f"would hold the job file {job_path}; choose another folder"


def _expand(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise SpecError([f"the environment variable {match[1]} is {'not set' if found is None else 'empty'}"])
        return found

    expanded = os.path.expanduser(_VARIABLE.sub(value, text))
    if "$" in expanded:
        raise SpecError([f"a $ that is no variable, in {expanded}; write ${{NAME}} for a value of the environment"])
    if expanded.startswith("~"):
        raise SpecError([f"no home folder for {expanded.split('/')[0]}; for a name that starts with ~ write ./~"])
    if "\0" in expanded:
        raise SpecError(["a path cannot hold the character U+0000"])
    return expanded


def _holds(folder: str, path: str) -> bool:
    """Whether `path` is `folder` or lies in it, through any links."""
    if "://" in folder or "://" in path:
        return f"{path}/".startswith(f"{folder.rstrip('/')}/")
    folder, path = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([folder, path]) == folder
