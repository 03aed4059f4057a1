"""How many threads a model gets on this machine's CPUs. Knows Linux's files about them; torch's own choice elsewhere.

A thread for every core that this process may use, and no more than its cgroups give it time for: torch does not look
at a container's quota, and threads that have no core stop those that have one at the end of every product.
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
    """Lower torch's number of threads where it is too high; OMP_NUM_THREADS is the user's word and stays."""
    if "OMP_NUM_THREADS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return
    num_cores = count_cores(os.sched_getaffinity(0), _CPUS)
    text = _PROC_CGROUP.read_text() if _PROC_CGROUP.exists() else ""
    num_threads = choose_threads(torch.get_num_threads(), num_cores, quotas(cgroups("cpu", text, _CGROUP_ROOT)))
    if num_threads < torch.get_num_threads():
        log.info("%d threads instead of %d: more have no core of their own", num_threads, torch.get_num_threads())
        torch.set_num_threads(num_threads)


def choose_threads(default: int, num_cores: int, quotas: Iterable[float]) -> int:
    """At most `default`, one a core, and within every quota; a part of a CPU is no thread, but one there always is."""
    return max(int(min([default, num_cores, *quotas])), 1)


def count_cores(cpus: Iterable[int], folder: Path) -> int:
    """Cores behind the logical `cpus`, which share one as hyperthreads: products fill a core with one of them."""
    names = (folder / f"cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    return len({name.read_text() if name.exists() else str(name) for name in names})


def quotas(levels: Iterable[Cgroup]) -> list[float]:
    """CPUs' worth of time that each level gives, where it sets a limit."""
    limits = (_v2_quota(folder) if is_v2 else _v1_quota(folder) for is_v2, folder in levels)
    return [limit for limit in limits if limit is not None]


def _v2_quota(folder: Path) -> float | None:
    """cpu.max: microseconds, or max, of every so many."""
    if not (folder / "cpu.max").exists():
        return None
    quota, period = (folder / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _v1_quota(folder: Path) -> float | None:
    """The same in two files; -1 is no limit."""
    if not (folder / "cpu.cfs_quota_us").exists():
        return None
    quota, period = (int((folder / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return quota / period if quota > 0 else None
