"""Where a checkpoint's files are, and why they cannot be loaded, as errors for the user. Reads its small files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from transformers.utils.hub import cached_file

from batchgen.errors import ModelError
from batchgen.models.gguf_file import find_parts
from batchgen.spec.job_spec import ModelSpec

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the first bytes of what stands in for a large file
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# What is read of a folder beside the weights.
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A local folder, a .gguf file in one, or a hub id."""

    name: str  # model.path of the job file
    location: str  # what transformers loads from: the folder or the hub id
    is_local: bool
    revision: str | None = None  # of a hub id; None is its main branch
    gguf_parts: Sequence[str] = ()  # names in the folder: of a .gguf file, or of all parts of a split one

    snapshot: str | None = None  # the folder in the hub's cache, if `name` is a folder with several

    @property
    def gguf_file(self) -> Path | None:
        """The .gguf file, the first part if it is split; None for other checkpoints."""
        return Path(self.location, self.gguf_parts[0]) if self.gguf_parts else None

    @property
    def weight_files(self) -> list[Path]:
        """The local files with weights, sorted by name; none for a model of the hub."""
        if not self.is_local:
            return []
        folder = Path(self.location)
        if self.gguf_parts:
            return [folder / name for name in self.gguf_parts]
        return sorted(file for file in folder.iterdir() if file.suffix in _WEIGHTS)

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments with which every loader of transformers finds these files."""
        if self.gguf_file is not None:
            return {"gguf_file": self.gguf_file.name}
        return {} if self.is_local else {"revision": self.revision or "main"}


def find_checkpoint(spec: ModelSpec) -> Checkpoint:
    """Return the checkpoint that `model.path` names, without asking the hub.

    Raises ModelError if it is not a model, or if a file of it has not been fetched from Git LFS.
    """
    path = Path(spec.path).expanduser()
    if path.suffix.lower() == ".gguf":
        return _gguf(spec, path)
    if path.is_dir():
        folder = _snapshot(spec, path)
        return replace(_folder(spec, folder), snapshot=None if folder == path else folder.name)
    if path.exists():
        raise ModelError(
            f"model.path {spec.path} is a file, but not a .gguf file; a model is a folder with config.json"
        )
    try:
        validate_repo_id(spec.path)
    except HFValidationError:
        raise ModelError(f"model.path {spec.path} does not exist, and is not a hub id (name, or owner/name)") from None
    return Checkpoint(spec.path, spec.path, is_local=False, revision=spec.revision)


def _gguf(spec: ModelSpec, path: Path) -> Checkpoint:
    if not path.is_file():
        raise ModelError(f"model.path {spec.path} does not exist; a .gguf file must be on this machine")
    parts = find_parts(path)
    if parts.missing:
        raise ModelError(
            f"model.path {spec.path} is one of {len(parts.names)} parts of a model, and these are not beside it: "
            f"{', '.join(parts.missing)}. Put all parts into one folder, or join them (llama-gguf-split --merge)."
        )
    _refuse_pointers(spec, (path.with_name(name) for name in parts.names))
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"model.path {spec.path} is a .gguf file, which needs packages that are not installed "
            f"({', '.join(missing)}): pip install 'batchgen[gguf]'"
        )
    return _local(spec, path.parent, parts.names)


def _snapshot(spec: ModelSpec, path: Path) -> Path:
    """Return the snapshot to use if `path` is the folder of a model in the hub's cache, else `path`."""
    snapshots = path if path.name == "snapshots" else path / "snapshots"
    if (path / "config.json").exists() or not snapshots.is_dir():
        return path
    main = snapshots.parent / "refs/main"
    if main.is_file() and (snapshots / main.read_text().strip()).is_dir():
        return snapshots / main.read_text().strip()
    found = sorted(folder for folder in snapshots.iterdir() if folder.is_dir())
    if len(found) == 1:
        return found[0]
    raise ModelError(
        f"model.path {spec.path} is a folder of the hub's cache with {len(found)} snapshots of a model; name one of "
        f"them: {', '.join(map(str, found))}"
    )


def _folder(spec: ModelSpec, path: Path) -> Checkpoint:
    is_adapter = (path / "adapter_config.json").is_file()  # refused when it is read
    if not (path / "config.json").is_file() and not is_adapter:
        gguf_files = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; to use a .gguf file in it, name the file ({', '.join(gguf_files)})" if gguf_files else ""
        raise ModelError(f"model.path {spec.path} is a folder without config.json, so not a model{hint}")
    _refuse_pointers(spec, (path / name for name in _SMALL_FILES))
    _refuse_pointers(spec, sorted(path.glob("model*.safetensors")) or sorted(path.glob("pytorch_model*.bin")))
    return _local(spec, path, ())


def _refuse_pointers(spec: ModelSpec, files: Iterable[Path]) -> None:
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(len(_LFS_POINTER))
            if head == _LFS_POINTER:
                raise ModelError(
                    f"model.path {spec.path}: {path.name} is a Git LFS pointer, not the file itself; fetch it with: "
                    "git lfs pull"
                )


def _local(spec: ModelSpec, folder: Path, gguf_parts: Sequence[str]) -> Checkpoint:
    if spec.revision is not None:
        raise ModelError(f"model.revision is for hub ids, but model.path {spec.path} is local; remove model.revision")
    return Checkpoint(spec.path, str(folder), is_local=True, gguf_parts=gguf_parts)


def refuse_adapter(checkpoint: Checkpoint, adapter_config: Mapping[str, Any]) -> None:
    """Raise ModelError for a checkpoint with an adapter, whose adapter_config.json this is; {} stands for none."""
    if adapter_config:
        base = adapter_config.get("base_model_name_or_path", "its base model")
        raise ModelError(
            f"model.path {checkpoint.name} contains an adapter ({adapter_config.get('peft_type', 'LoRA')}, of {base}), "
            "which batchgen does not apply; merge it into the base model (merge_and_unload in peft, then "
            "save_pretrained) and name the folder of the merged model"
        )


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


def json_file(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return the values of a JSON file of the checkpoint but for nulls; {} without the file, or for a .gguf file.

    Raises ModelError if it cannot be read.
    """
    with as_model_error(checkpoint, name):
        return read_json(checkpoint, name)


def read_json(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Do the same as `json_file`, but raise whatever error there is."""
    if checkpoint.gguf_file is not None:
        return {}
    file = cached_file(
        checkpoint.location,
        name,
        **checkpoint.options,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    values = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if value is not None}


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
