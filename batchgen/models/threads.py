"""The number of CPU threads of a model. Knows Linux's topology and cgroup files; elsewhere torch's choice stays.

One thread for every core that this process may use, within the CPU quotas of its cgroups. torch ignores a container's
quota, and at the end of every matrix product the threads that have a core wait for those that have none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from batchgen.models.cgroups import Cgroup, cgroups

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")

log = logging.getLogger("batchgen")


def limit_threads() -> None:
    """Lower torch's number of threads if it is too high; if the user has set OMP_NUM_THREADS, that number stays."""
    if "OMP_NUM_THREADS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return
    num_cores = count_cores(os.sched_getaffinity(0), _CPUS)
    text = _PROC_CGROUP.read_text() if _PROC_CGROUP.exists() else ""
    num_threads = choose_threads(torch.get_num_threads(), num_cores, quotas(cgroups("cpu", text, _CGROUP_ROOT)))
    if num_threads < torch.get_num_threads():
        log.info("using %d threads instead of %d: more would have to share cores", num_threads, torch.get_num_threads())
        torch.set_num_threads(num_threads)


def choose_threads(default: int, num_cores: int, quotas: Iterable[float]) -> int:
    """Return at most `default` threads, one a core, within every quota (rounded down), but at least one."""
    return max(int(min([default, num_cores, *quotas])), 1)


def count_cores(cpus: Iterable[int], folder: Path) -> int:
    """Return the number of cores of the logical `cpus`; in a matrix product one hyperthread fills a core."""
    names = (folder / f"cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    return len({name.read_text() if name.exists() else str(name) for name in names})


def quotas(levels: Iterable[Cgroup]) -> list[float]:
    """Return the limit of each level that sets one, in CPUs."""
    limits = (_v2_quota(folder) if is_v2 else _v1_quota(folder) for is_v2, folder in levels)
    return [limit for limit in limits if limit is not None]


def _v2_quota(folder: Path) -> float | None:
    """Read cpu.max: a quota in microseconds, or max, and its period."""
    if not (folder / "cpu.max").exists():
        return None
    quota, period = (folder / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _v1_quota(folder: Path) -> float | None:
    """Read the quota and its period from two files; a quota of -1 is no limit."""
    if not (folder / "cpu.cfs_quota_us").exists():
        return None
    quota, period = (int((folder / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return quota / period if quota > 0 else None
