from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from batchgen.errors import ModelError
from batchgen.models import checkpoint
from batchgen.models.checkpoint import Checkpoint, as_model_error, find_checkpoint
from batchgen.spec.job_spec import ModelSpec

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 92000000\n"
HUB = Checkpoint("acme/model", "acme/model", is_local=False)


def _refusal(path: str | Path, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as refused:
        find_checkpoint(ModelSpec(path=str(path), revision=revision))
    assert str(path) in str(refused.value)
    return str(refused.value)


def _explanation(cause: Exception, of: Checkpoint = HUB) -> str:
    """Return the message for the user when transformers fails because of `cause`."""
    with pytest.raises(ModelError) as refused, as_model_error(of, "config"):
        raise OSError("first line of the library\nsecond line") from cause
    assert str(refused.value).startswith(f"model.path {of.name}: its config cannot be loaded: ")
    return str(refused.value)


def test_a_folder_with_a_config_is_local(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert find_checkpoint(ModelSpec(path=str(tmp_path))) == Checkpoint(str(tmp_path), str(tmp_path), is_local=True)


def test_a_hub_id_keeps_its_revision_for_every_loader() -> None:
    assert find_checkpoint(ModelSpec(path="acme/model", revision="v2")).options == {"revision": "v2"}


def test_a_gguf_file_is_a_name_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda package: package)
    (tmp_path / "Model.GGUF").write_bytes(b"")
    found = find_checkpoint(ModelSpec(path=str(tmp_path / "Model.GGUF")))
    assert (found.location, found.options) == (str(tmp_path), {"gguf_file": "Model.GGUF"})


def test_a_missing_path_that_is_no_hub_id() -> None:
    assert "does not exist, and is not a hub id" in _refusal("./no/such/folder")


def test_a_missing_gguf_file() -> None:
    assert "does not exist" in _refusal("acme/model.gguf")


def test_missing_gguf_packages_are_reported_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda package: package if package == "gguf" else None)
    (tmp_path / "m.gguf").write_bytes(b"")
    assert "(accelerate): pip install 'batchgen[gguf]'" in _refusal(tmp_path / "m.gguf")


def test_a_folder_without_config_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    assert "folder without config.json, so not a model; to use a .gguf file in it, name the file (m.gguf)" in _refusal(
        tmp_path
    )


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "model-00002-of-00002.safetensors"]
)
def test_a_git_lfs_pointer_is_not_a_file_of_a_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(POINTER)
    assert f"{name} is a Git LFS pointer, not the file itself; fetch it with: git lfs pull" in _refusal(tmp_path)


def test_pointers_to_files_that_are_not_used_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "flax_model.msgpack", "picture.png"):
        (tmp_path / name).write_text(POINTER)
    assert find_checkpoint(ModelSpec(path=str(tmp_path))).weight_files


def test_a_pointer_to_weights_of_the_old_format_matters_without_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text(POINTER)
    assert "pytorch_model.bin is a Git LFS pointer" in _refusal(tmp_path)


def test_a_gguf_file_that_git_lfs_has_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text(POINTER)
    assert "x.gguf is a Git LFS pointer, not the file itself" in _refusal(tmp_path / "x.gguf")


def _split(folder: Path, parts: list[int], count: int) -> Path:
    """Write empty parts; return the path of the first one written."""
    paths = [folder / f"m-{part:05}-of-{count:05}.gguf" for part in parts]
    for path in paths:
        path.write_bytes(b"")
    return paths[0]


def test_all_parts_of_a_split_gguf_file_are_found_from_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda package: package)
    second = _split(tmp_path, [2, 1, 3], 3)
    found = find_checkpoint(ModelSpec(path=str(second)))
    assert found.options == {"gguf_file": "m-00001-of-00003.gguf"}
    assert [file.name for file in found.weight_files] == [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


def test_missing_parts_of_a_split_gguf_file_are_named(tmp_path: Path) -> None:
    message = _refusal(_split(tmp_path, [2], 3))
    assert "one of 3 parts of a model" in message
    assert "m-00001-of-00003.gguf, m-00003-of-00003.gguf. Put all parts into one folder" in message
    assert "llama-gguf-split --merge" in message


def _cached(folder: Path, *commits: str) -> Path:
    for commit in commits:
        (folder / "models--acme--m/snapshots" / commit).mkdir(parents=True)
        (folder / "models--acme--m/snapshots" / commit / "config.json").write_text("{}")
    return folder / "models--acme--m"


@pytest.mark.parametrize("subfolder", ["", "snapshots"])
def test_of_a_folder_of_the_hubs_cache_the_only_snapshot_is_used(tmp_path: Path, subfolder: str) -> None:
    path = _cached(tmp_path, "abc") / subfolder
    found = find_checkpoint(ModelSpec(path=str(path)))
    assert (found.location, found.snapshot) == (str(tmp_path / "models--acme--m/snapshots/abc"), "abc")


def test_of_several_snapshots_main_is_used(tmp_path: Path) -> None:
    path = _cached(tmp_path, "abc", "def")
    assert f"2 snapshots of a model; name one of them: {path}/snapshots/abc, {path}/snapshots/def" in _refusal(path)
    (path / "refs").mkdir()
    (path / "refs/main").write_text("def")
    assert find_checkpoint(ModelSpec(path=str(path))).snapshot == "def"


def test_a_snapshot_itself_is_a_plain_folder(tmp_path: Path) -> None:
    path = _cached(tmp_path, "abc", "def") / "snapshots/abc"
    assert find_checkpoint(ModelSpec(path=str(path))) == Checkpoint(str(path), str(path), is_local=True)


def test_another_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"")
    assert "not a .gguf file" in _refusal(tmp_path / "m.bin")


def test_a_revision_of_a_local_folder_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "remove model.revision" in _refusal(tmp_path, revision="main")


@pytest.mark.parametrize(
    ("cause", "meaning"),
    [
        (GatedRepoError, "granted on its hub page"),
        (RepositoryNotFoundError, "no such model on the hub"),
        (RevisionNotFoundError, "no such model.revision"),
    ],
)
def test_errors_of_the_hub_are_explained(cause: type[Exception], meaning: str) -> None:
    assert meaning in _explanation(cause.__new__(cause))


@pytest.mark.parametrize(("offline", "reason"), [(True, "HF_HUB_OFFLINE is set"), (False, "the hub cannot be reached")])
def test_a_model_that_is_not_cached_names_the_reason_it_was_not_downloaded(
    monkeypatch: pytest.MonkeyPatch, offline: bool, reason: str
) -> None:
    monkeypatch.setattr(checkpoint, "is_offline_mode", lambda: offline)
    assert reason in _explanation(LocalEntryNotFoundError("not cached"))


def test_of_any_other_error_the_first_line_is_shown() -> None:
    assert _explanation(ValueError("cause")).endswith(": first line of the library")


def test_a_damaged_gguf_file_is_reported_as_damaged() -> None:
    gguf = Checkpoint("m.gguf", ".", is_local=True, gguf_parts=["m.gguf"])
    assert "the .gguf file is damaged" in _explanation(ValueError("cause"), gguf)


def test_a_model_error_is_not_changed() -> None:
    with pytest.raises(ModelError, match=r"^ours$"), as_model_error(HUB, "config"):
        raise ModelError("ours")
