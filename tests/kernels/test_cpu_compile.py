from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from numba.core import caching

from batchgen_kernels.cpu import compile as kernel_compile
from batchgen_kernels.cpu.attention import attend_tasks
from batchgen_kernels.cpu.compile import compiled, preferred_cache


def test_a_change_of_any_file_changes_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text("a")
    (tmp_path / "inner.py").write_text("b")
    before = preferred_cache(tmp_path, "")
    assert before == preferred_cache(tmp_path, "")
    assert before.parent == tmp_path / "__pycache__"
    (tmp_path / "inner.py").write_text("c")
    assert preferred_cache(tmp_path, "") != before


def test_the_folder_of_the_user_is_used(tmp_path: Path) -> None:
    assert preferred_cache(tmp_path, "/somewhere").parent == Path("/somewhere")


def test_numba_caches_the_kernels_in_the_folder() -> None:
    assert Path(attend_tasks.stats.cache_path).parent.name.startswith("kernels-")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder, in which the kernels that a test compiles are kept."""
    monkeypatch.setattr(kernel_compile, "_CACHE", tmp_path)
    return tmp_path


def _double(value: Any) -> Any:
    return value * 2


def test_a_kernel_is_read_from_the_folder_by_the_next_process(folder: Path) -> None:
    assert compiled()(_double)(3) == 6
    kernel = compiled()(_double)
    assert kernel(3) == 6
    assert sum(kernel.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_is_replaced(folder: Path, suffix: str) -> None:
    compiled()(_double)(3)
    (file,) = folder.rglob(f"*{suffix}")
    file.write_bytes(b"")  # as a power failure may leave it
    assert compiled()(_double)(3) == 6
    kernel = compiled()(_double)
    assert kernel(3) == 6
    assert sum(kernel.stats.cache_hits.values()) == 1


def test_a_full_disk_does_not_stop_a_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    assert compiled()(_double)(3) == 6


def test_a_kernel_that_numba_cannot_cache_is_compiled_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    kernel = compiled()(_double)
    assert (kernel(3), kernel.stats.cache_path) == (6, None)


def test_without_a_folder_kernels_are_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compile, "_CACHE", None)
    kernel = compiled()(_double)
    assert (kernel(3), kernel.stats.cache_path) == (6, None)
