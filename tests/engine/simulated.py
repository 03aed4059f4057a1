"""The real scheduler with runners that compute nothing: one that counts, one that checks every slot that is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchgen.engine.assemble import EngineSettings, make_scheduler
from batchgen.engine.engine import Engine
from batchgen.engine.outcome import Failed, Outcome, Sampled
from batchgen.engine.request import Request
from batchgen.engine.step import SchedulerOutput
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from batchgen.stats.counters import RunStats

Prompts = Sequence[str]


class CountingRunner:
    """Answers every sampled chunk with token 7 and remembers what was computed."""

    def __init__(self) -> None:
        self.computed: dict[int, list[int]] = {}  # row -> positions, in the order they were computed

    def run(self, step: SchedulerOutput) -> list[Outcome]:
        for chunk in step.chunks:
            self.computed.setdefault(chunk.request.row_index, []).extend(range(chunk.start, chunk.stop))
        return [Sampled(7)] * len(step.sampled_requests)


class CheckedEngine(Engine):
    """Checks every invariant after every step."""

    runner: CountingRunner

    def step(self) -> list[Request]:
        finished = super().step()
        self.scheduler.check_integrity()
        return finished


def make_engine(**given: int | bool | None) -> CheckedEngine:
    defaults: dict[str, int | bool | None] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_batched_tokens": 32,
        "expected_tokens": None,
        "prefix_cache": True,
        "max_model_len": 512,
        "by_prefix": True,
    }
    values = EngineSettings(**{**defaults, **given})  # type: ignore[arg-type]
    return CheckedEngine(make_scheduler(values), CountingRunner(), RunStats(values.block_size, values.max_model_len))


def tokens(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def make_requests(prompts: Prompts, max_tokens: Sequence[int], block_size: int = 4) -> list[Request]:
    store = PackedTokens.pack([tokens(prompt) for prompt in prompts])
    order = visiting_order(lexicographic_order(store, range(len(store))), store, max_tokens, block_size)
    return [
        Request(row, store[row], SamplingParams(), draw_key=0, max_tokens=max_tokens[row], shared_with_next=shared)
        for row, shared in zip(order.positions.tolist(), order.shared.tolist(), strict=True)
    ]


def finish(engine: Engine, requests: Sequence[Request]) -> list[Request]:
    return [request for finished in engine.run(requests) for request in finished]


class CheckingRunner(CountingRunner):
    """Simulates the KV pool: every slot a row reads must hold the KV of just the tokens that the row has so far."""

    def __init__(self, block_size: int, broken_rows: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.block_size = block_size
        self.broken_rows = broken_rows
        self.slots: dict[tuple[int, int], list[int]] = {}

    def run(self, step: SchedulerOutput) -> list[Outcome]:
        self.copy(step)
        for chunk in step.chunks:  # every layer writes before it attends
            for position in range(chunk.start, chunk.stop):
                self.slots[self.slot(chunk.request, position)] = chunk.request.token_ids(0, position + 1)
        for chunk in step.chunks:
            tokens = chunk.request.token_ids(0, chunk.stop)
            for position in range(chunk.stop):
                assert self.slots[self.slot(chunk.request, position)] == tokens[: position + 1]
        super().run(step)
        return [self.outcome(request) for request in step.sampled_requests]

    def copy(self, step: SchedulerOutput) -> None:
        """Before anything is written, and all read before the first is written."""
        offsets = range(self.block_size)
        read = [[self.slots.get((copy.source, offset), []) for offset in offsets] for copy in step.copies]
        for copy, block in zip(step.copies, read, strict=True):
            self.slots |= {(copy.target, offset): block[offset] for offset in offsets}

    def outcome(self, request: Request) -> Outcome:
        return Failed("broken") if request.row_index in self.broken_rows else Sampled(7)

    def slot(self, request: Request, position: int) -> tuple[int, int]:
        return request.block_table[position // self.block_size], position % self.block_size
