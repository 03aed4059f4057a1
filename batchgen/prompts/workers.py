"""Runs pass 1 in worker processes, which start only for a large job and never outlive this process.

Knows processes; `encoder.py` knows what they compute.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from batchgen.errors import BatchgenError
from batchgen.io.input.rows import Row
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.prompt import Prompts

# Encoding this many tokens takes about as long as starting the workers, so starting them at most doubles the time.
_TOKENS_BEFORE_WORKERS = 2_000_000
_MAX_WORKERS = 8  # with more, reading and storing in this process is the bottleneck

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("batchgen")

RowsAndPrompts = tuple[Sequence[Row], Prompts]

_encoder: RowEncoder  # set in worker processes only


class _Worker(SpawnProcess):
    def terminate(self) -> None:
        """Kill the worker: a broken pool terminates the others and waits for them, but workers ignore SIGTERM."""
        self.kill()


class _WorkerContext(SpawnContext):
    """Spawns workers: a fork would copy the locks of torch's threads in whatever state they are."""

    Process = _Worker


def encode_in_order(
    batches: Iterable[Sequence[Row]],
    encoder: RowEncoder,
    *,
    num_workers: int | None = None,
    tokens_before_workers: int = _TOKENS_BEFORE_WORKERS,
) -> Generator[RowsAndPrompts]:
    """Yield every batch with its prompts, in the order of the batches; two batches per worker are read ahead.

    Workers start if there is more than one core, once this process has encoded `tokens_before_workers` tokens and
    rows remain; if none can be started, this process encodes all rows. `num_workers` None: one per core, at most 8.
    Raises BatchgenError if a worker dies.
    """
    num_workers = min(_num_cores(), _MAX_WORKERS) if num_workers is None else num_workers
    num_tokens = 0
    remaining = iter(batches)
    for rows in remaining:
        prompts = encoder.encode(rows)
        yield rows, prompts
        num_tokens += len(prompts.token_ids)
        if num_workers > 1 and num_tokens >= tokens_before_workers:
            break
    yield from _encode_in_workers(remaining, encoder, num_workers)


def _encode_in_workers(
    batches: Iterator[Sequence[Row]], encoder: RowEncoder, num_workers: int
) -> Generator[RowsAndPrompts]:
    pool = _Pool(encoder, num_workers)
    in_flight: deque[tuple[Sequence[Row], Future[Prompts]]] = deque()
    try:
        for rows in batches:
            in_flight.append((rows, pool.submit(rows)))
            if len(in_flight) == 2 * num_workers:
                yield _oldest(in_flight)
        while in_flight:
            yield _oldest(in_flight)
    except BrokenProcessPool as error:
        raise BatchgenError(
            f"a worker process that tokenises the input died at {in_flight[0][0][0].location} or soon after, "
            "perhaps because memory ran out; run again with more memory, or without workers, on one core "
            "(taskset -c 0 batchgen ...)"
        ) from error
    finally:
        pool.close()


class _Pool:
    """Encodes rows in workers; in this process from the first worker on that cannot be started.

    A machine may lack /dev/shm, which the locks of worker processes need, or limit processes or open files.
    """

    def __init__(self, encoder: RowEncoder, num_workers: int) -> None:
        self._encoder, self._num_workers = encoder, num_workers
        self._executor: ProcessPoolExecutor | None = None
        self._can_start = True

    def submit(self, rows: Sequence[Row]) -> Future[Prompts]:
        if self._can_start:
            try:
                if self._executor is None:
                    resource_tracker.ensure_running()  # here, since it unblocks signals
                    self._executor = ProcessPoolExecutor(
                        self._num_workers, _WorkerContext(), _init_worker, (self._encoder,)
                    )
                with _signals_held_back():
                    return self._executor.submit(_encode, rows)  # starts a worker if none is idle
            except OSError as error:
                self._can_start = False
                log.info("tokenising in this process, since worker processes cannot be started (%s)", error)
        encoded: Future[Prompts] = Future()
        encoded.set_result(self._encoder.encode(rows))
        return encoded

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Handle SIGINT and SIGTERM after the block. Workers that it starts have them blocked until they ignore them.

    Otherwise Ctrl-C would end a worker during its imports, or end this process's start of a worker halfway; either
    prints tracebacks. Blocking is not enough here: other threads of this process receive the signal.
    """
    arrived: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {signum: signal.signal(signum, lambda number, _: arrived.append(number)) for signum in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for held_back, handler in handlers.items():
            signal.signal(held_back, handler)
    for signum in arrived:
        signal.raise_signal(signum)


def _oldest(in_flight: deque[tuple[Sequence[Row], Future[Prompts]]]) -> RowsAndPrompts:
    rows, future = in_flight[0]
    prompts = future.result()
    in_flight.popleft()  # only now: the error for a dead worker names the oldest rows without a result
    return rows, prompts


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _init_worker(encoder: RowEncoder) -> None:
    global _encoder
    for signum in _SIGNALS:  # Ctrl-C and `timeout` signal every process; the parent ends workers
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    _encoder = encoder


def _end_with_parent() -> None:
    """Exit once the parent has ended: a killed parent cannot end its workers, which would wait for work forever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _encode(rows: Sequence[Row]) -> Prompts:
    return _encoder.encode(rows)
