"""Scheduler: which tokens of which requests the next step computes, and in which blocks. Plain Python.

There are no prefill and decode phases: a request has `num_tokens` known tokens of which `num_computed_tokens` are
computed, and each step lets it catch up (the idea of vLLM's scheduler). The rules:

1. Running requests first, in the order of their admission; only the step's token budget cuts a chunk, or for a prompt
   whose own log-probabilities are asked for the number of prompt logits that a step holds.
2. Then waiting requests strictly in order, none skipped, while the pool can be expected to see them to their end.
3. A prompt block enters the prefix cache when the chunk that fills it is scheduled, so that rows of the same step share
   it: every layer writes K and V before it attends.
4. When the pool is full after all, the request admitted last gives its blocks back and is the first to come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from batchgen.engine.expected_tokens import ExpectedTokens
from batchgen.engine.outcome import Failed, Outcome
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Request, RequestStatus
from batchgen.request_output import FinishReason

# Places in prompts whose logits one step computes; logits are the widest thing a model makes.
MAX_PROMPT_LOGITS = 256


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `[start, start + num_tokens)` of a request, computed in this step."""

    request: Request
    start: int
    num_tokens: int
    # The chunk reaches the last known token, so its logits give the next one.
    is_sampled: bool

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether it computes prompt tokens. For statistics; nothing is decided by it."""
        return self.start < self.request.num_prompt_tokens

    @property
    def scored(self) -> range:
        """Places whose logits say how likely the prompt's next token was, where that is asked for and not known yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return range(0)
        return range(max(self.start, len(request.prompt_logprobs)), min(self.stop, request.num_prompt_tokens - 1))


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that got its first blocks, or got them again after a preemption."""

    request: Request
    num_matched_tokens: int  # found in the prefix cache
    num_recomputed_tokens: int  # computed once before and lost by preemption


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision."""

    num_tokens_left: int  # of the step's token budget
    num_prompt_logits_left: int = MAX_PROMPT_LOGITS
    chunks: list[ScheduledChunk] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)  # alone in the pool and still too large for it
    waits_for_blocks: bool = False  # a waiting request was held back by the pool, not by the budget
    waits_for_reservation: bool = False  # and only by the room kept for expected output
    num_refused_though_free: int = 0  # external fragmentation, which blocks of one size cannot have

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    def most_tokens(self, request: Request) -> int:
        """How many tokens of the request fit what is left of the step."""
        num_tokens = min(request.num_uncomputed_tokens, self.num_tokens_left)
        return min(num_tokens, self.num_prompt_logits_left) if request.computes_whole_prompt else num_tokens


class Scheduler:
    """Moves requests from waiting to running to finished.

    Invariant: `running` is in the order of admission; every waiting request comes after every running one in the
    visiting order, but for preempted ones at the front of the queue.
    """

    def __init__(
        self, cache: PrefixCache, *, max_num_seqs: int, max_batched_tokens: int, expected_tokens: ExpectedTokens
    ) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.expected_tokens = expected_tokens
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    @property
    def capacity_tokens(self) -> int:
        """Token slots of the whole pool."""
        return self.cache.pool.num_blocks * self.cache.block_size

    def add(self, request: Request) -> None:
        """Queue a request behind the others. Its prompt must fit the pool (`capacity_tokens`)."""
        assert 0 < request.num_prompt_tokens <= self.capacity_tokens
        self.waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        """Decide one step and apply the decision to the blocks; the tokens count as computed from here on."""
        step = SchedulerOutput(self.max_batched_tokens)
        self._schedule_running(step)
        if not (step.preempted or step.failed):
            self._admit_waiting(step)
        return step

    def update(self, step: SchedulerOutput, outcomes: Sequence[Outcome]) -> list[Request]:
        """Take what each sampled chunk of `step` gave; returns the requests that ended."""
        for chunk, outcome in zip((c for c in step.chunks if c.is_sampled), outcomes, strict=True):
            if isinstance(outcome, Failed):
                chunk.request.finish(FinishReason.ERROR, outcome.error)
            else:
                chunk.request.append(outcome)
        finished = step.failed + [c.request for c in step.chunks if c.request.status is RequestStatus.FINISHED]
        for request in finished:
            self._finish(request)
        if finished:
            self._remove_finished()
        return finished

    def _remove_finished(self) -> None:
        running: list[Request] = []
        for request in self.running:
            if request.status < RequestStatus.FINISHED:
                running.append(request)
            elif running and request.shared_with_next is not None:
                # Should the row before come again, its next row is the one after this one: what it shares with that
                # is the least over the gap.
                before = running[-1]
                assert before.shared_with_next is not None
                before.shared_with_next = min(before.shared_with_next, request.shared_with_next)
        self.running = running

    # Running requests

    def _schedule_running(self, step: SchedulerOutput) -> None:
        for request in self._running_in_order():
            if step.num_tokens_left == 0:
                break
            num_tokens = step.most_tokens(request)
            if num_tokens and self._make_room(request, num_tokens, step):
                self._schedule_chunk(request, num_tokens, step)

    def _running_in_order(self) -> Iterator[Request]:
        """The running requests, also while the last of them are being preempted."""
        position = 0
        while position < len(self.running):
            yield self.running[position]
            position += 1

    def _make_room(self, request: Request, num_tokens: int, step: SchedulerOutput) -> bool:
        """Preempt from the back until the chunk fits; False if `request` itself had to go."""
        needed = self._num_blocks(request.num_computed_tokens + num_tokens) - len(request.block_table)
        while needed > self.cache.num_available:
            step.num_refused_though_free += self.cache.pool.num_free >= needed
            victim = self.running[-1]
            if victim is request and len(self.running) == 1:
                self._fail(request, step)
                return False
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, step: SchedulerOutput) -> None:
        assert self.running.pop() is victim
        victim.status, victim.num_lost_tokens = RequestStatus.PREEMPTED, victim.num_computed_tokens
        self._give_back(victim)
        self.waiting.appendleft(victim)
        step.preempted.append(victim)

    def _fail(self, request: Request, step: SchedulerOutput) -> None:
        """The last one running, and the whole pool is too small for it."""
        request.finish(
            FinishReason.ERROR,
            f"the row needs more than the {self.capacity_tokens} tokens that the KV pool has in all "
            f"(prompt {request.num_prompt_tokens}, generated {len(request.output_token_ids)}, "
            f"up to {request.num_prompt_tokens + request.max_tokens} asked for); "
            "lower sampling.max_tokens, or raise engine.num_blocks or engine.memory_fraction",
        )
        step.failed.append(request)

    # Waiting requests

    def _admit_waiting(self, step: SchedulerOutput) -> None:
        headroom = self.cache.num_available - sum(map(self._num_growth_blocks, self.running))
        while self.waiting and step.num_tokens_left and not step.failed and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if step.most_tokens(request) == 0:
                return
            chain = self.cache.match(request.prompt_token_ids)
            # At least one token must be computed: its logits are wanted.
            num_usable = 0 if request.computes_whole_prompt else (request.num_tokens - 1) // self.cache.block_size
            matched = chain[:num_usable]
            needed = self._num_growth_blocks(request) - len(matched) + sum(map(self.cache.is_idle, matched))
            if needed > headroom and self.running:
                step.waits_for_blocks = True
                step.waits_for_reservation = self._fits_now(request, matched)
                return
            headroom -= needed
            self._admit(self.waiting.popleft(), chain, matched, step)

    def _admit(self, request: Request, chain: list[int], matched: list[int], step: SchedulerOutput) -> None:
        num_matched = len(matched) * self.cache.block_size
        self.cache.acquire(matched)
        if request.shared_with_next is not None:
            self.cache.keep_only(chain, request.shared_with_next // self.cache.block_size)
        request.block_table = list(matched)
        request.num_computed_tokens = num_matched
        request.num_indexed_blocks = len(matched)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_matched
        num_recomputed = max(request.num_lost_tokens - num_matched, 0)
        step.admissions.append(Admission(request, num_matched, num_recomputed))
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        num_tokens = step.most_tokens(request)
        if self._make_room(request, num_tokens, step):
            self._schedule_chunk(request, num_tokens, step)

    def _fits_now(self, request: Request, matched: list[int]) -> bool:
        """Whether the known tokens would fit at this moment, growth of all rows left aside."""
        num_idle = sum(map(self.cache.is_idle, matched))
        return self._num_blocks(request.num_tokens) - len(matched) + num_idle <= self.cache.num_available

    def _num_growth_blocks(self, request: Request) -> int:
        """Blocks the request is expected to take beyond those it holds."""
        expected = max(self.expected_tokens.value, len(request.output_token_ids) + 1)
        # The last token is never an input, so its KV is never stored.
        num_stored = request.num_prompt_tokens + min(request.max_tokens, expected) - 1
        return max(self._num_blocks(num_stored) - len(request.block_table), 0)

    # Blocks

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.cache.block_size)

    def _schedule_chunk(self, request: Request, num_tokens: int, step: SchedulerOutput) -> None:
        start, stop = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        for _ in range(self._num_blocks(stop) - len(request.block_table)):
            request.block_table.append(self.cache.allocate())
        request.num_computed_tokens = stop
        self._index_filled_blocks(request)
        chunk = ScheduledChunk(request, start, num_tokens, is_sampled=stop == request.num_tokens)
        step.num_tokens_left -= num_tokens
        step.num_prompt_logits_left -= len(chunk.scored)
        step.chunks.append(chunk)

    def _index_filled_blocks(self, request: Request) -> None:
        """Let later rows share the prompt blocks that are full now. Only the prompt's: completions are not shared."""
        size = self.cache.block_size
        num_full = min(request.num_computed_tokens, request.num_prompt_tokens) // size
        num_kept = num_full if request.shared_with_next is None else request.shared_with_next // size
        for position in range(request.num_indexed_blocks, num_full):
            parent = request.block_table[position - 1] if position else None
            tokens = request.prompt_token_ids[position * size : (position + 1) * size].tobytes()
            # Refused where an equal block is there: this row's last one, whose last token it had to compute again, or
            # all of them where it computes its whole prompt.
            self.cache.insert(request.block_table[position], parent, tokens, has_later_row=position < num_kept)
        request.num_indexed_blocks = max(request.num_indexed_blocks, num_full)

    def _give_back(self, request: Request) -> None:
        self.cache.release(request.block_table)
        request.block_table = []
        request.num_computed_tokens = 0
        request.num_indexed_blocks = 0

    def _finish(self, request: Request) -> None:
        self._give_back(request)
        if request.finish_reason is not FinishReason.ERROR:
            self.expected_tokens.observe(len(request.output_token_ids))

    def check_integrity(self) -> None:
        """Pool, index and requests agree; nothing of a request that is not running is held."""
        self.cache.check_integrity([request.block_table for request in self.running])
        for request in self.running:
            assert request.status is RequestStatus.RUNNING
            assert self._num_blocks(request.num_computed_tokens) == len(request.block_table)
            assert request.num_computed_tokens <= request.num_tokens
        for request in self.waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert not request.block_table
