from __future__ import annotations

from pathlib import Path

from batchgen_kernels.cpu.attention import attend_tasks
from batchgen_kernels.cpu.compile import cache_folder


def test_a_change_of_any_file_changes_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text("a")
    (tmp_path / "inner.py").write_text("b")
    before = cache_folder(tmp_path, "")
    assert before == cache_folder(tmp_path, "")
    assert before.parent == tmp_path / "__pycache__"
    (tmp_path / "inner.py").write_text("c")
    assert cache_folder(tmp_path, "") != before


def test_the_folder_of_the_user_is_used(tmp_path: Path) -> None:
    assert cache_folder(tmp_path, "/somewhere").parent == Path("/somewhere")


def test_numba_caches_the_kernels_in_the_folder() -> None:
    assert Path(attend_tasks.stats.cache_path).parent.name.startswith("kernels-")
