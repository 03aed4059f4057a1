"""Holder: which processes count as running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from batchgen.io.output import holder
from batchgen.io.output.holder import SILENT_SECONDS, Holder

ME = Holder.this_process()


def test_this_process_runs_whatever_its_last_heartbeat() -> None:
    assert ME.is_live(10 * SILENT_SECONDS)


def test_a_killed_process_that_its_parent_has_not_waited_for_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = replace(ME, pid=process.pid, started=holder._state_and_start(process.pid)[1])
    assert child.is_live(0)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not child.is_live(0)
    assert process.wait() == -signal.SIGKILL


def test_a_pid_that_is_used_again_is_not_the_old_process() -> None:
    assert not replace(ME, started="1").is_live(0)


def test_a_process_that_proc_hides_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "_state_and_start", lambda pid: (None, None))
    assert ME.is_live(0)


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}])
def test_a_process_that_cannot_be_seen_counts_as_dead_after_two_minutes(elsewhere: dict[str, str]) -> None:
    """Containers may have the host's name, and their processes the same numbers as its own."""
    unseen = replace(ME, pid=2**22, **elsewhere)
    assert unseen.is_live(SILENT_SECONDS - 10)
    assert not unseen.is_live(SILENT_SECONDS + 10)
