"""A machine that gives a job little: a read-only installation, a user without name and home, few files, one CPU."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.end_to_end.harness import TinyRunner, prompts

ROOT = Path(__file__).parents[2]
# In a namespace of its own: /dev/shm becomes read-only, and this user becomes one that /etc/passwd does not know.
NO_SHARED_MEMORY = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
UNNAMED_USER = "exec unshare --user --map-user=12345 --map-group=12345"
MOUNT = f'mount -t tmpfs -o ro none /dev/shm && {UNNAMED_USER} "$0" "$@"'


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NO_SHARED_MEMORY, MOUNT, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """Return a copy of the packages in folders that cannot be written to, without any compiled kernel."""
    copy = tmp_path / "installation"
    for package in ("batchgen", "kernels/batchgen_kernels"):
        shutil.copytree(ROOT / package, copy / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *copy.rglob("*/")]:
        folder.chmod(0o555)
    return copy


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


@pytest.mark.slow
@pytest.mark.skipif(not _has_namespaces(), reason="needs user namespaces")
def test_a_job_runs_with_little(installation: Path, run_tiny: TinyRunner, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installation), "TMPDIR": str(tmp_path / "temporary")}
    for home in ({}, {"HOME": "/proc"}):  # none, and one that cannot be written to
        job_file = run_tiny.write(prompts("note a", "note b"))
        done = subprocess.run(
            [*NO_SHARED_MEMORY, MOUNT, sys.executable, "-m", "batchgen", "run", str(job_file)],
            cwd=tmp_path, env=environment | home, preexec_fn=_limit, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        table = pq.read_table(job_file.with_suffix("") / "completions")
        assert table["completion"].to_pylist() == ["A", "B"]
        (line,) = (line for line in done.stderr.splitlines() if "kernels" in line)
        assert f"are kept in {tmp_path}/temporary/batchgen-12345/kernels-" in line
        assert all(line.startswith("batchgen: ") for line in done.stderr.splitlines()), done.stderr
    assert not (tmp_path / "~").exists()
