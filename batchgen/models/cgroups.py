"""The folders with the limits of this process's cgroups. Knows paths; knows nothing of what the files mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Version 2 mounts at the root, or below `unified` beside version 1; version 1 has a mount for each controller.
_V2_MOUNTS = ("", "unified")


class Cgroup(NamedTuple):
    """One level of the hierarchy; its folder may not exist."""

    is_v2: bool
    folder: Path


def cgroups(controller: str, proc_cgroup: str, root: Path) -> Iterator[Cgroup]:
    """Yield every level whose limit binds, given the text of /proc/self/cgroup and the mount folder of cgroups.

    All levels up to the root count, since a parent's limit binds its children. Inside a container the path may be the
    host's; then only the root level exists.
    """
    for line in proc_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue
        path = path.lstrip("/")
        for mount in _V2_MOUNTS if is_v2 else (controller,):
            folder = root / mount / path
            for level in [folder, *folder.parents][: len(Path(path).parts) + 1]:
                yield Cgroup(is_v2, level)
