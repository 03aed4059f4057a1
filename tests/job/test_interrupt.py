"""Signals: when the first one ends a run, and that a second one waits for nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.job.interrupt import Interrupt, Interrupted

ROOT = Path(__file__).parents[2]


def test_a_signal_ends_what_is_not_deferred_at_once() -> None:
    with Interrupt(), pytest.raises(Interrupted, match="interrupted by SIGTERM; run the same command again") as raised:
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.exit_code == 143


def test_a_deferred_block_runs_to_its_end() -> None:
    done: list[bool] = []

    def work(interrupt: Interrupt) -> None:
        with interrupt.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append(interrupt.is_requested)

    with Interrupt() as interrupt, pytest.raises(Interrupted, match="SIGINT"):
        work(interrupt)
    assert done == [True]


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = """
import signal
from batchgen.job.interrupt import Interrupt
with Interrupt() as interrupt, interrupt.deferred():
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
