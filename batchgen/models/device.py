"""Where a model runs and how much memory is left there. Knows devices and cgroups; knows nothing of KV or requests."""

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
    """`auto` (a GPU if there is one), `cpu`, `cuda` (the first) or `cuda:N`. ModelError: that GPU is not there."""
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
        f"torch {torch.__version__}, built for CUDA or ROCm {built_for}, finds no usable GPU (driver, or none visible)"
    )


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware; emulated, it is slower than float32."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _BF16_CAPABILITIES)


def available_memory(device: torch.device) -> int:
    """Bytes this process can still take: free GPU memory, or RAM within the limits of its cgroups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: all of the RAM, as no portable call tells what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cgroup = Path("/proc/self/cgroup")
    limits = cgroup_memory(cgroup.read_text(), _CGROUP_ROOT) if cgroup.exists() else []
    return min([meminfo_available(meminfo.read_text()), *limits])


def meminfo_available(text: str) -> int:
    """Bytes of the `MemAvailable` line of /proc/meminfo."""
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(values["MemAvailable"].split()[0]) * 1024


class _Files(NamedTuple):
    """What a cgroup version calls its memory files."""

    limit: str
    usage: str
    # the line of memory.stat that counts file pages the kernel drops first; they are in `usage` but can be taken
    reclaimable: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def cgroup_memory(proc_cgroup: str, root: Path) -> list[int]:
    """Bytes left under each memory limit that holds; see `cgroups`."""
    levels = cgroups("memory", proc_cgroup, root)
    return [room for level in levels if (room := _room(level)) is not None]


def _room(cgroup: Cgroup) -> int | None:
    """Bytes left in one cgroup, or None where it sets no limit."""
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
    """Whether torch says with it that an allocation failed: by its type, or of a CPU or a library in words."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def can_measure_memory(device: torch.device) -> bool:
    """Whether `peak_memory` works there: torch counts what it takes of a GPU only."""
    return device.type == "cuda"


def peak_memory(device: torch.device, work: Callable[[], None]) -> int:
    """Bytes of a GPU that torch takes for `work` at most, pieces that it cannot use included. Whatever `work` made
    must be gone when it returns."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def release_freed_memory(device: torch.device) -> None:
    """Let a GPU have back what torch keeps of freed tensors, so that pieces too small for a step become whole again."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def keep_freed_memory() -> None:
    """Have the C library keep large buffers that are freed, where it is glibc.

    By default it hands each back to the kernel, and every activation of the next layer is paid for in page faults: up
    to a third of a matrix product of 1024 tokens.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 2**30)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
