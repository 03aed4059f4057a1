"""Worker processes: when they start, that prompts do not depend on them, and how they end."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import BatchgenError
from batchgen.io.input.rows import Row
from batchgen.prompts import workers
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.workers import _signals_held_back, encode_in_order
from batchgen.spec.job_spec import InputSpec
from tests.prompts.harness import BATCHES, DyingEncoder, MaskEncoder, PidEncoder
from tests.tiny_models import byte_tokenizer, merging_tokenizer

ROOT = Path(__file__).parents[2]


def encode(encoder: Any, **settings: int) -> list[list[int]]:
    """Return (row, process) of every row."""
    found = encode_in_order(BATCHES, encoder, **settings)
    return [pair for _, prompts in found for pair in prompts.token_ids.reshape(-1, 2).tolist()]


def test_workers_start_after_enough_tokens_and_keep_the_order() -> None:
    found = encode(PidEncoder(), num_workers=2, tokens_before_workers=8)
    assert [row for row, _ in found] == [*range(24)]
    here = [row for row, process in found if process == os.getpid()]
    assert here == [0, 1, 2, 3]  # two tokens a row


@pytest.mark.parametrize("settings", [{"num_workers": 2}, {"num_workers": 1, "tokens_before_workers": 0}], ids=str)
def test_small_job_or_one_core_starts_no_worker(settings: dict[str, int]) -> None:
    assert {process for _, process in encode(PidEncoder(), **settings)} == {os.getpid()}


def test_every_worker_starts_with_signals_blocked() -> None:
    found = encode(MaskEncoder(), num_workers=2, tokens_before_workers=0)
    assert [is_blocked for row, is_blocked in found if row > 1] == [True] * 22
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_signal_during_the_start_of_a_worker_is_handled_after_it() -> None:
    """Also one that another thread receives, which blocking cannot hold back."""
    ended: list[bool] = []
    is_started = threading.Event()

    def interrupt() -> None:
        is_started.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()

    def start_worker() -> None:
        with _signals_held_back():
            is_started.set()
            thread.join()
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        start_worker()
    assert ended == [True]


def test_no_pool_is_made_for_rows_that_are_all_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", None)
    assert len(encode(PidEncoder(), num_workers=2)) == 24


def _no_semaphores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as a machine without /dev/shm does."""

    def no_lock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(workers._WorkerContext, "Lock", no_lock)


def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as a limit of processes does, when the second worker is started."""
    start, started = workers._Worker.start, list[workers._Worker]()

    def limited(process: workers._Worker) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(process)
        start(process)

    monkeypatch.setattr(workers._Worker, "start", limited)


@pytest.mark.parametrize("limit", [_no_semaphores, _one_process])
def test_where_workers_cannot_be_started_this_process_encodes_the_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: Callable[[pytest.MonkeyPatch], None]
) -> None:
    limit(monkeypatch)
    with caplog.at_level("INFO", "batchgen"):
        found = encode(PidEncoder(), num_workers=2, tokens_before_workers=0)
    assert [row for row, _ in found] == [*range(24)]
    assert sum(process == os.getpid() for _, process in found) >= 20
    assert len({message for message in caplog.messages if "worker processes cannot be started" in message}) == 1
    assert not multiprocessing.active_children()


def test_batches_are_read_a_few_ahead() -> None:
    num_read = 0

    def batches() -> Iterator[list[Row]]:
        nonlocal num_read
        for batch in BATCHES:
            num_read += 1
            yield batch

    encoder: Any = PidEncoder()
    found = encode_in_order(batches(), encoder, num_workers=2, tokens_before_workers=0)
    for num_done in range(1, 4):
        next(found)
        assert num_read <= num_done + 4  # two per worker
    found.close()


def test_the_error_for_a_dead_worker_names_the_row() -> None:
    with pytest.raises(
        BatchgenError, match=r"a worker process that tokenises the input died at x line \d+ or soon after"
    ):
        encode(DyingEncoder(), num_workers=2, tokens_before_workers=0)


def test_workers_make_the_prompts_that_this_process_makes() -> None:
    spec = InputSpec(path="in.jsonl", prompt="q", system="s")
    encoder = RowEncoder(merging_tokenizer(), spec, vocab_size=1000, max_model_len=200, clock=datetime.now())
    texts = ["hi", "Let's think.\n\n", "<|im_end|>", 3, "x" * 300]  # the last two are bad
    rows = [Row(n, f"line {n}", {"q": text, "s": "The weather is 42"}) for n, text in enumerate(texts)]
    _, (_, found) = encode_in_order([rows, rows], encoder, num_workers=2, tokens_before_workers=0)
    expected = encoder.encode(rows)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert [bad.row_index for bad in found.bad] == [3, 4]
    assert found.bad == expected.bad


@pytest.mark.slow
def test_worker_gets_the_tokenizer_without_torch(tmp_path: Path) -> None:
    spec = InputSpec(path="in.jsonl", template="{{ q }}")
    encoder = RowEncoder(byte_tokenizer(), spec, vocab_size=264, max_model_len=50, clock=datetime.now())
    (tmp_path / "encoder").write_bytes(pickle.dumps(encoder))
    code = (
        "import pickle, sys; from batchgen.io.input.rows import Row\n"
        "prompts = pickle.load(open('encoder', 'rb')).encode([Row(0, '', {'q': 'hi'})])\n"
        "print(prompts.token_ids.tolist()[-2:], 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[104, 105] False\n", done.stderr


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(
        "import os, signal\n"
        "from batchgen.prompts.workers import encode_in_order\n"
        "from tests.prompts.harness import BATCHES, PidEncoder\n"
        "if __name__ == '__main__':\n"
        "    found = encode_in_order(BATCHES, PidEncoder(), num_workers=2, tokens_before_workers=0)\n"
        "    next(found)\n"
        "    print(next(found)[1].token_ids[1], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "parent.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
