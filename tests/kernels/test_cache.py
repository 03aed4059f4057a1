"""Compiled kernels are code: they are kept where they can be written, but not where another user could plant some."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchgen_kernels.cache import choose_cache_folder, temporary_cache, user_cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose home and temporary folder lie in `tmp_path`, with a file where the preferred folder should be."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "read-only").touch()  # root may write to any folder, but to no folder below a file
    return tmp_path


def _choose(home: Path) -> Path | None:
    return choose_cache_folder(home / "read-only/cache", "kernels")


def test_the_preferred_folder_is_used_if_it_can_be_written_to(home: Path) -> None:
    assert choose_cache_folder(home / "new/cache", "kernels") == home / "new/cache"
    assert not (home / "home").exists()


def test_the_cache_folder_of_the_user_is_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose(home) == home / "home/.cache/batchgen/kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert _choose(home) == home / "xdg/batchgen/kernels"


def test_without_a_usable_home_a_temporary_folder_of_this_user_alone_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home / "read-only"))
    folder = home / f"temporary/batchgen-{os.getuid()}"
    assert _choose(home) == folder / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_user_without_name_and_home_has_no_cache_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # not in /etc/passwd
    assert user_cache() is None


def test_without_a_folder_for_temporary_files_nothing_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "read-only"))

    def none_usable() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    assert temporary_cache() is None
    assert _choose(home) is None


def _of_another_user(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, os.getuid() + 1, -1)


def _writable_by_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")


@pytest.mark.parametrize("plant", [pytest.param(_of_another_user, marks=AS_ROOT), _writable_by_all, _link])
def test_a_temporary_folder_into_which_others_may_have_written_is_not_trusted(
    home: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("HOME", str(home / "read-only"))
    plant(home / f"temporary/batchgen-{os.getuid()}")
    assert _choose(home) is None
