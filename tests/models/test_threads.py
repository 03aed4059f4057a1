"""The number of threads is chosen from files in the format of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from batchgen.models import threads
from batchgen.models.cgroups import cgroups
from batchgen.models.threads import choose_threads, count_cores, limit_threads, quotas


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def _quotas(proc_cgroup: str, root: Path) -> list[float]:
    return quotas(cgroups("cpu", proc_cgroup, root))


@pytest.mark.parametrize(
    ("default", "num_cores", "limits", "expected"),
    [
        (64, 64, [], 64),
        (64, 64, [2.0], 2),
        (64, 64, [8.0, 3.5], 3),
        (64, 64, [0.5], 1),
        (8, 4, [16.0], 4),
        (2, 64, [16.0], 2),
    ],
    ids=["no limit", "a quota", "the lowest of two", "less than a CPU", "hyperthreads", "torch has fewer"],
)
def test_choice(default: int, num_cores: int, limits: list[float], expected: int) -> None:
    assert choose_threads(default, num_cores, limits) == expected


def test_hyperthreads_are_one_core(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        _write(tmp_path / f"cpu{cpu}/topology", thread_siblings_list=siblings)
    assert [count_cores(cpus, tmp_path) for cpus in ([0, 1, 2, 3], [0, 1], [0, 2])] == [2, 2, 1]


def test_without_a_topology_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert count_cores([0, 1, 5], tmp_path) == 3


def test_cgroup_v2_quota_and_its_parents(tmp_path: Path) -> None:
    _write(tmp_path / "slice", cpu__max="150000 100000")
    _write(tmp_path / "slice/job", cpu__max="400000 100000")
    assert _quotas("0::/slice/job\n", tmp_path) == [4.0, 1.5]


def test_cgroup_v2_without_a_limit(tmp_path: Path) -> None:
    _write(tmp_path / "job", cpu__max="max 100000")
    assert _quotas("0::/job\n", tmp_path) == []


def test_cgroup_v1_quota(tmp_path: Path) -> None:
    _write(tmp_path / "cpu/job", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    _write(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert _quotas("4:memory:/job\n3:cpu,cpuacct:/job\n", tmp_path) == [2.5]


def test_a_quota_lowers_torchs_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, cpu__max="100000 100000", cgroup="0::/")
    monkeypatch.setattr(threads, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(threads, "_PROC_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    limit_threads()
    assert torch.get_num_threads() == 2  # the user's choice
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads()
    assert torch.get_num_threads() == 1
