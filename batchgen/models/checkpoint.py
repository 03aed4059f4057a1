"""Where a checkpoint's files are, and why they cannot be loaded, as errors for the user. Opens no file.

For a .gguf file, `cached_gguf_parsing` has the gguf package parse the header once. transformers would have it parsed
for the config, the tokenizer and the weights each, and the table of tensor names built for every module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from batchgen.errors import ModelError
from batchgen.spec.job_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A local folder, a .gguf file in one, or a hub id."""

    name: str  # model.path of the job file
    location: str  # what transformers loads from: the folder or the hub id
    is_local: bool
    revision: str | None = None  # of a hub id; None is its main branch
    gguf_file: str | None = None  # its name in the folder

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments with which every loader of transformers finds these files."""
        if self.gguf_file is not None:
            return {"gguf_file": self.gguf_file}
        return {} if self.is_local else {"revision": self.revision or "main"}


def find_checkpoint(spec: ModelSpec) -> Checkpoint:
    """Return the checkpoint that `model.path` names, without asking the hub. Raises ModelError if it is not a model."""
    path = Path(spec.path).expanduser()
    if path.suffix.lower() == ".gguf":
        _refuse_gguf(spec, path)
        return _local(spec, path.parent, path.name)
    if path.is_dir():
        _refuse_folder(spec, path)
        return _local(spec, path, None)
    if path.exists():
        raise ModelError(
            f"model.path {spec.path} is a file, but not a .gguf file; a model is a folder with config.json"
        )
    try:
        validate_repo_id(spec.path)
    except HFValidationError:
        raise ModelError(f"model.path {spec.path} does not exist, and is not a hub id (name, or owner/name)") from None
    return Checkpoint(spec.path, spec.path, is_local=False, revision=spec.revision)


def _refuse_gguf(spec: ModelSpec, path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"model.path {spec.path} does not exist; a .gguf file must be on this machine")
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"model.path {spec.path} is a .gguf file, which needs packages that are not installed "
            f"({', '.join(missing)}): pip install 'batchgen[gguf]'"
        )


def _refuse_folder(spec: ModelSpec, path: Path) -> None:
    if not (path / "config.json").is_file():
        gguf_files = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; to use a .gguf file in it, name the file ({', '.join(gguf_files)})" if gguf_files else ""
        raise ModelError(f"model.path {spec.path} is a folder without config.json, so not a model{hint}")


def _local(spec: ModelSpec, folder: Path, gguf_file: str | None) -> Checkpoint:
    if spec.revision is not None:
        raise ModelError(f"model.revision is for hub ids, but model.path {spec.path} is local; remove model.revision")
    return Checkpoint(spec.path, str(folder), is_local=True, gguf_file=gguf_file)


@contextmanager
def as_model_error(checkpoint: Checkpoint, what: str) -> Iterator[None]:
    """Turn what a library raises in the block into a ModelError that names the part of the model and the reason."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        reason = _reason(error, checkpoint)
        raise ModelError(f"model.path {checkpoint.name}: its {what} cannot be loaded: {reason}") from error


# What an error of the hub means for the user. GatedRepoError is a RepositoryNotFoundError, so it comes first.
_HUB_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (GatedRepoError, "access to it must be granted on its hub page; then log in (hf auth login) or set HF_TOKEN"),
    (
        RepositoryNotFoundError,
        "there is no such model on the hub (or it is private: hf auth login), and no such folder",
    ),
    (RevisionNotFoundError, "the hub has no such model.revision"),
)


def _reason(error: Exception, checkpoint: Checkpoint) -> str:
    causes = list(_causes(error))
    for kind, meaning in _HUB_REASONS:
        if any(isinstance(cause, kind) for cause in causes):
            return meaning
    if any(isinstance(cause, LocalEntryNotFoundError) for cause in causes):
        obstacle = "HF_HUB_OFFLINE is set" if is_offline_mode() else "the hub cannot be reached"
        return f"it is not in the local cache, there is no folder of that name, and {obstacle}"
    if "trust_remote_code" in str(error):
        return "it needs the Python code in its checkpoint; if you trust that code, set model.trust_remote_code: true"
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(": ")
    if checkpoint.gguf_file is not None:
        return f"the .gguf file is damaged, or of a kind that transformers cannot read ({first_line})"
    return first_line


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def cached_gguf_parsing(checkpoint: Checkpoint) -> Iterator[None]:
    """Cache the results of the gguf package's parsers in the block; other checkpoints do not use the package."""
    if checkpoint.gguf_file is None:
        yield
        return
    import gguf  # an optional dependency, and slow to import

    reader, table = cache(_fast_reader(gguf.GGUFReader)), cache(gguf.get_tensor_name_map)
    with patched(gguf, "GGUFReader", reader), patched(gguf, "get_tensor_name_map", table):
        yield


@contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace `module.name` by `value` in the block."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _fast_reader(reader: Any) -> Any:
    class FastReader(reader):  # type: ignore[misc]
        """Slices the mapped file as a plain array: numpy's bookkeeping of memory maps took two thirds of the time."""

        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._data = np.asarray(mapped)

    return FastReader
