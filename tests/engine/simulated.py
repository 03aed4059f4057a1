"""The real scheduler with runners that compute nothing: one that counts, one that checks every slot that is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from batchgen.engine.build import EngineSettings, make_scheduler
from batchgen.engine.engine import Engine
from batchgen.engine.request import PENDING_TOKEN, Failed, Outcome, Request, SampledToken
from batchgen.engine.step import SchedulerOutput
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.request_output import FinishReason
from batchgen.sampling_params import SamplingParams
from batchgen.stats.counters import RunStats
from batchgen.stats.prompt_tokens import PromptTokens

Prompts = Sequence[str]
GARBAGE = 0  # a token that a broken row goes on with on the device


class CountingRunner:
    """Answers every sampled chunk with token 7 and remembers what was computed."""

    lag = 0

    def __init__(self) -> None:
        self.computed: dict[int, list[int]] = {}  # row -> positions, in the order they were computed
        self.sampled: dict[Request, int] = {}  # what the step that began last gave: only the device knows
        self.under_way: deque[SimulatedStep] = deque()

    def start(self, step: SchedulerOutput) -> SimulatedStep:
        """The outcomes of a step are fetched before the next one begins, with a lag of 1 before the one after."""
        assert not step.is_idle
        assert len(self.under_way) <= self.lag
        outcomes = self.run(step)
        self.sampled = {
            request: outcome.token_id if isinstance(outcome, SampledToken) else GARBAGE
            for request, outcome in zip(step.sampled_requests, outcomes, strict=True)
        }
        self.under_way.append(SimulatedStep(self, outcomes))
        return self.under_way[-1]

    def token_ids(self, request: Request, stop: int) -> list[int]:
        """The first tokens of a request as the device knows them."""
        token_ids = request.token_ids(0, stop)
        return [self.sampled[request] if token == PENDING_TOKEN else token for token in token_ids]

    def run(self, step: SchedulerOutput) -> list[Outcome]:
        for chunk in step.chunks:
            self.computed.setdefault(chunk.request.row_index, []).extend(range(chunk.start, chunk.stop))
        return [SampledToken(7)] * len(step.sampled_requests)


@dataclass(frozen=True)
class SimulatedStep:
    """Computed, and still to be fetched: once, and in order."""

    runner: CountingRunner
    known: list[Outcome]

    def outcomes(self) -> list[Outcome]:
        assert self.runner.under_way.popleft() is self
        return self.known


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
        Request(row, store[row], SamplingParams(), rng_key=0, max_tokens=max_tokens[row], shared_with_next=shared)
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
                self.slots[self.slot(chunk.request, position)] = self.token_ids(chunk.request, position + 1)
        for repeat in step.repeats:
            for position in range(repeat.start, repeat.stop):
                self.slots[repeat.target, position % self.block_size] = self.token_ids(repeat.request, position + 1)
        for chunk in step.chunks:
            tokens = self.token_ids(chunk.request, chunk.stop)
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
        return Failed("broken") if request.row_index in self.broken_rows else SampledToken(7)

    def slot(self, request: Request, position: int) -> tuple[int, int]:
        return request.block_table[position // self.block_size], position % self.block_size


def random_prompts(max_rows: int = 16) -> st.SearchStrategy[list[str]]:
    """A few long stems over two letters, cut anywhere and continued: prefixes nest, repeat and end on block borders."""
    stems = st.lists(st.text("ab", min_size=1, max_size=16), min_size=1, max_size=3)
    ends = st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 16), st.text("ab", max_size=8)), min_size=1, max_size=max_rows
    )
    return st.tuples(stems, ends).map(
        lambda drawn: [drawn[0][stem % len(drawn[0])][:cut] + end for stem, cut, end in drawn[1]]
    )


@dataclass(frozen=True)
class RandomJob:
    """Prompts, and an engine for them whose pool is hardly larger than the longest."""

    prompts: list[str]
    max_tokens: list[int]
    spare_blocks: int
    settings: dict[str, int | bool | None]
    lag: int

    @property
    def block_size(self) -> int:
        return int(self.settings["block_size"] or 0)

    def engine(self, runner: CountingRunner) -> CheckedEngine:
        longest = -(-max(map(len, self.prompts)) // self.block_size)
        engine = make_engine(num_blocks=longest + self.spare_blocks, **self.settings)
        engine.runner, runner.lag = runner, self.lag
        return engine

    def requests(self) -> list[Request]:
        requests = make_requests(self.prompts, self.max_tokens, self.block_size)
        for request in requests:
            request.account.group = request.row_index % 3
            if not self.settings["by_prefix"]:
                request.shared_with_next = None
        return requests


@st.composite
def random_jobs(
    draw: st.DrawFn,
    *,
    max_rows: int = 10,
    most_tokens: int = 12,
    block_sizes: Sequence[int] = (1, 2, 4, 8),
    budgets: Sequence[int] = (1, 2, 5, 16, 64),
    expected_tokens: Sequence[int | None] = (None, 1, 2, 5),
) -> RandomJob:
    return RandomJob(
        prompts=draw(random_prompts(max_rows)),
        max_tokens=draw(st.lists(st.integers(1, most_tokens), min_size=max_rows, max_size=max_rows)),
        spare_blocks=draw(st.integers(0, 12)),
        settings={
            "block_size": draw(st.sampled_from(block_sizes)),
            "max_num_seqs": draw(st.integers(1, 10)),
            "max_batched_tokens": draw(st.sampled_from(budgets)),
            "expected_tokens": draw(st.sampled_from(expected_tokens)),
            "by_prefix": draw(st.booleans()),
            "prefix_cache": draw(st.booleans()),
        },
        lag=draw(st.sampled_from([0, 1])),
    )


def check_accounts(job: RandomJob, engine: Engine, done: Sequence[Request]) -> None:
    """Nothing is held at the end, and every token that was computed or found is accounted for once."""
    pool, stats = engine.scheduler.cache.pool, engine.stats
    assert pool.num_used == 0
    assert pool.num_idle == 0 or not job.settings["by_prefix"]
    assert stats.prompt.total == sum(map(len, job.prompts))
    assert sum((group.prompt for group in stats.groups.values()), PromptTokens()) == stats.prompt
    if all(request.finish_reason is not FinishReason.ERROR for request in done):
        later_outputs = sum(len(request.output_token_ids) - 1 for request in done)  # the last is never computed
        num_computed = stats.prompt.total - stats.prompt.found + stats.num_recomputed_tokens + later_outputs
        num_computed += stats.num_overrun_tokens
        assert stats.num_prefill_tokens + stats.num_decode_tokens == num_computed


def brute_force_ceiling(prompts: Prompts, block_size: int) -> int:
    """Sum over the nodes of the block prefix tree of (rows through it - max(1, rows ending exactly on it))."""
    through: dict[str, int] = {}
    ending: dict[str, int] = {}
    for prompt in prompts:
        for stop in range(block_size, len(prompt) + 1, block_size):
            through[prompt[:stop]] = through.get(prompt[:stop], 0) + 1
        ending[prompt] = ending.get(prompt, 0) + 1
    return block_size * sum(count - max(1, ending.get(node, 0)) for node, count in through.items())
