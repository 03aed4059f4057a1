"""The device of a model and the memory available there. Knows devices and cgroups; knows nothing of KV or requests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from batchgen.errors import ModelError
from batchgen.models.cgroups import Cgroup, cgroups

_BF16_CAPABILITIES = ("avx512_bf16", "amx_bf16", "bf16")  # the last one is ARM's name
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def choose_device(name: str) -> torch.device:
    """Return the device of auto (a GPU if any), cpu, cuda (the first GPU) or cuda:N. Raises ModelError without it."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(f"engine.device is {name}, but {_why_no_gpu()}. Use engine.device: cpu, or auto.")
    index = int(name.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise ModelError(f"engine.device is {name}, but the GPUs here are 0 to {torch.cuda.device_count() - 1}.")
    return torch.device("cuda", index)


def _why_no_gpu() -> str:
    built_for = torch.version.cuda or torch.version.hip
    if built_for is None:
        return f"torch {torch.__version__} was built for the CPU only"
    return (
        f"torch {torch.__version__}, built for CUDA or ROCm {built_for}, finds no usable GPU: it has no driver, or no "
        "GPU is visible"
    )


def has_bfloat16(device: torch.device) -> bool:
    """Return whether bfloat16 matrix products run in hardware; emulated ones are slower than float32."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _BF16_CAPABILITIES)


def available_memory(device: torch.device) -> int:
    """Return the bytes this process can still allocate: free GPU memory, or RAM within the limits of its cgroups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: all of the RAM, as there is no portable call for what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cgroup = Path("/proc/self/cgroup")
    limits = cgroup_memory(cgroup.read_text(), _CGROUP_ROOT) if cgroup.exists() else []
    return min([meminfo_available(meminfo.read_text()), *limits])


def meminfo_available(text: str) -> int:
    """Return the bytes of the `MemAvailable` line of /proc/meminfo."""
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(values["MemAvailable"].split()[0]) * 1024


class _Files(NamedTuple):
    """The names of a cgroup version's memory files."""

    limit: str
    usage: str
    # line of memory.stat that counts the file pages the kernel drops first: part of `usage`, yet available
    reclaimable: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def cgroup_memory(proc_cgroup: str, root: Path) -> list[int]:
    """Return the bytes left under each memory limit that binds; see `cgroups`."""
    levels = cgroups("memory", proc_cgroup, root)
    return [left for level in levels if (left := _bytes_left(level)) is not None]


def _bytes_left(cgroup: Cgroup) -> int | None:
    """Return the bytes left in one cgroup, or None if it sets no limit."""
    folder, files = cgroup.folder, _V2 if cgroup.is_v2 else _V1
    if not (folder / files.limit).exists():
        return None
    limit = (folder / files.limit).read_text().strip()
    if limit == "max":
        return None
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / files.usage).read_text()) - int(stat.get(files.reclaimable, 0))
    return max(0, int(limit) - used)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of torch means a failed allocation, by its type or (CPU, CUDA libraries) its message."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def can_measure_memory(device: torch.device) -> bool:
    """Return whether `peak_memory` works on this device: torch counts its allocations on GPUs only."""
    return device.type == "cuda"


def peak_memory(device: torch.device, work: Callable[[], None]) -> int:
    """Return the most bytes of a GPU that torch reserves during `work`, fragments included. The tensors that `work`
    creates must be freed when it returns."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def release_freed_memory(device: torch.device) -> None:
    """Return the memory of freed tensors that torch caches to the GPU, so that fragments can be joined again."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def disable_malloc_trimming() -> None:
    """Make glibc's malloc keep large freed buffers instead of returning them to the kernel; no effect elsewhere.

    Otherwise the activations of every layer cost page faults: up to a third of the time of a matrix product of 1024
    tokens.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 2**30)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
