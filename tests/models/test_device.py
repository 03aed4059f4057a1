from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchgen.errors import ModelError
from batchgen.models import device
from batchgen.models.device import (
    available_memory,
    cgroup_memory,
    choose_device,
    has_bfloat16,
    meminfo_available,
)

CPU = torch.device("cpu")
GIB = 2**30


def _gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_auto_is_the_first_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:0")


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    assert choose_device("auto") == CPU


def test_cpu_is_the_cpu_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 1)
    assert choose_device("cpu") == CPU


def test_cuda_on_a_cpu_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ModelError, match=r"engine\.device is cuda, but torch .* was built for the CPU only"):
        choose_device("cuda")


def test_cuda_without_a_usable_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ModelError, match=r"built for CUDA or ROCm 13\.0, finds no usable GPU"):
        choose_device("cuda:1")


def test_a_missing_gpu_is_refused_with_the_range_of_those_present(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 2)
    with pytest.raises(ModelError, match="cuda:2, but the GPUs here are 0 to 1"):
        choose_device("cuda:2")


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16", "bf16"])
def test_each_of_three_instruction_sets_gives_a_cpu_bfloat16(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, capability: True})
    assert has_bfloat16(CPU)


def test_a_cpu_with_avx2_only_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False})
    assert not has_bfloat16(CPU)


def test_meminfo_counts_what_is_available_not_what_is_free() -> None:
    assert meminfo_available("MemTotal: 900 kB\nMemFree:    1 kB\nMemAvailable:     300 kB\n") == 300 * 1024


def _cgroup(folder: Path, limit: str, used: int, inactive: int) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_cgroup_v2_counts_inactive_files_as_available(tmp_path: Path) -> None:
    _cgroup(tmp_path / "job", "1000", used=700, inactive=100)
    assert cgroup_memory("0::/job\n", tmp_path) == [400]


def test_a_parent_cgroup_binds_too(tmp_path: Path) -> None:
    _cgroup(tmp_path / "slice", "500", used=450, inactive=0)
    _cgroup(tmp_path / "slice" / "job", "1000", used=100, inactive=0)
    assert cgroup_memory("0::/slice/job\n", tmp_path) == [900, 50]


def test_a_cgroup_without_a_limit_is_ignored(tmp_path: Path) -> None:
    _cgroup(tmp_path / "job", "max", used=700, inactive=100)
    assert cgroup_memory("0::/job\n", tmp_path) == []


def test_a_cgroup_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    _cgroup(tmp_path / "job", "1000", used=1200, inactive=0)
    assert cgroup_memory("0::/job\n", tmp_path) == [0]


def test_inside_a_container_the_root_level_is_the_containers(tmp_path: Path) -> None:
    _cgroup(tmp_path / "c", "1000", used=200, inactive=0)
    assert cgroup_memory("0::/path/on/the/host\n", tmp_path / "c") == [800]


def test_cgroup_v1_has_its_own_file_names_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("600\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert cgroup_memory("3:cpu,cpuacct:/job\n4:memory:/job\n0::/\n", tmp_path) == [450]


def test_memory_of_a_cpu_is_the_lowest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cgroup_memory", lambda text, root: [7 * 1024, 3 * 1024])
    monkeypatch.setattr(device, "meminfo_available", lambda text: 5 * 1024)
    assert available_memory(CPU) == 3 * 1024
