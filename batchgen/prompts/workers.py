"""Pass 1 over worker processes: started once a job has shown to be large, ended with this process whatever happens.

Knows processes; what they do is `encode.py`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess

from batchgen.errors import BatchgenError
from batchgen.io.input.rows import Row
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.prompt import Prompts

# Making this many tokens takes about as long as starting the workers, so that these never double a job's time.
_TOKENS_BEFORE_WORKERS = 2_000_000
_MAX_WORKERS = 8  # with more of them, reading and storing in this process is what takes the time

RowsAndPrompts = tuple[Sequence[Row], Prompts]

_encoder: RowEncoder  # of a worker process


class _Worker(SpawnProcess):
    def terminate(self) -> None:
        """How a pool that lost a worker ends the others, and then waits for them: workers ignore the usual signal."""
        self.kill()


class _WorkerContext(SpawnContext):
    """spawn: a fork would copy torch's threads in whatever state they are."""

    Process = _Worker


def encode_in_order(
    batches: Iterable[Sequence[Row]],
    encoder: RowEncoder,
    *,
    num_workers: int | None = None,
    tokens_before_workers: int = _TOKENS_BEFORE_WORKERS,
) -> Generator[RowsAndPrompts]:
    """Every batch and its prompts, in the order of the batches; two batches a worker are read ahead.

    Workers start where there is more than one core, once this process has made `tokens_before_workers` tokens and
    rows are left. `num_workers` None: as many as there are cores. Raises BatchgenError when a worker dies.
    """
    num_workers = min(_num_cores(), _MAX_WORKERS) if num_workers is None else num_workers
    num_tokens = 0
    left = iter(batches)
    for rows in left:
        prompts = encoder.encode(rows)
        yield rows, prompts
        num_tokens += len(prompts.token_ids)
        if num_workers > 1 and num_tokens >= tokens_before_workers:
            break
    yield from _over_workers(left, encoder, num_workers)


def _over_workers(batches: Iterator[Sequence[Row]], encoder: RowEncoder, num_workers: int) -> Generator[RowsAndPrompts]:
    pool = ProcessPoolExecutor(num_workers, _WorkerContext(), _begin_worker, (encoder,))
    in_flight: deque[tuple[Sequence[Row], Future[Prompts]]] = deque()
    try:
        for rows in batches:
            in_flight.append((rows, pool.submit(_encode, rows)))
            if len(in_flight) == 2 * num_workers:
                yield _oldest(in_flight)
        while in_flight:
            yield _oldest(in_flight)
    except BrokenProcessPool as error:
        raise BatchgenError(
            f"a worker process that tokenises the input died at {in_flight[0][0][0].location} or soon after, "
            "perhaps because memory ran out; run again with more memory, or on one core (taskset -c 0 batchgen ...), "
            "where there are no workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _oldest(in_flight: deque[tuple[Sequence[Row], Future[Prompts]]]) -> RowsAndPrompts:
    rows, future = in_flight[0]
    prompts = future.result()
    in_flight.popleft()  # only now: a worker that dies is reported by the oldest rows without an answer
    return rows, prompts


def _num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker(encoder: RowEncoder) -> None:
    global _encoder
    for signum in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and `timeout` reach all processes; the parent ends workers
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    _encoder = encoder


def _end_with_parent() -> None:
    """A parent that was killed can tell its workers nothing, and they would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _encode(rows: Sequence[Row]) -> Prompts:
    return _encoder.encode(rows)
