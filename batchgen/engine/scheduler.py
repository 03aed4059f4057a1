"""Scheduler: which tokens of which requests the next step computes, and in which blocks. Plain Python.

There are no prefill and decode phases: a request has `num_tokens` known tokens of which `num_computed_tokens` are
computed, and each step lets it catch up (the idea of vLLM's scheduler). The rules:

1. Running requests first, in the order of their admission; only the step's token budget cuts a chunk, or for a prompt
   whose own log-probabilities are asked for the number of prompt logits that a step holds.
2. Then waiting requests strictly in order, none skipped, while the pool can be expected to see them to their end.
3. A prompt block enters the prefix cache when the chunk that fills it is scheduled, so that rows of the same step share
   it: every layer writes K and V before it attends. So can the beginning of a block: what the step computes of it is
   written twice, the rest copied.
4. When a chunk ends a row's prompt, its logits give the first token of every sample of the row. The later samples hold
   the prompt's blocks from then on, and are the next to be admitted.
5. When the pool is full after all, the request admitted last gives its blocks back and is the first to come again.
6. A step may be decided while the one before is under way. The tokens that one gives are pending: they count, and a
   request whose last token is pending leaves at once. Nobody is preempted or failed whose pending token may end it.

A request that ends by what its pending token is, has one token in the step under way that nobody wants. Its blocks go
to others all the same: steps come one after the other on the device, so that whatever a later step writes or copies
comes after that token's K and V, which lie behind the prompt's and so behind all that others may share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from batchgen.engine.admission import ExpectedTokens, Reservation
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.request import Outcome, Request, RequestStatus, remove_finished
from batchgen.engine.request_blocks import FoundBlocks, RequestBlocks
from batchgen.engine.step import Admission, ScheduledChunk, SchedulerOutput
from batchgen.errors import CapacityError
from batchgen.request_output import FinishReason


class Scheduler:
    """Moves requests from waiting to running to finished.

    Invariant: `running` is in the order of admission; every waiting request comes after every running one in the
    visiting order, but for preempted ones and later samples of a running row at the front of the queue.
    """

    def __init__(
        self, cache: PrefixCache, *, max_num_seqs: int, max_batched_tokens: int, expected_tokens: ExpectedTokens
    ) -> None:
        self.cache = cache
        self.blocks = RequestBlocks(cache)
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
        """Queue the first sample of a row behind the others. Its prompt must fit the pool (`capacity_tokens`)."""
        assert 0 < request.num_prompt_tokens <= self.capacity_tokens
        self.waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        """Decide one step and apply the decision to the blocks; the tokens count as computed from here on.

        Raises CapacityError when a step of one token was too large for the device.
        """
        if not self.max_batched_tokens:
            raise CapacityError(
                "the device has no memory left for a step of a single token; the rows that are finished are kept: "
                "lower engine.memory_fraction or engine.num_blocks, and run the same command again"
            )
        self.blocks.begin_step()
        step = SchedulerOutput(self.max_batched_tokens)
        if self._schedule_running(step) and not step.preempted:
            self._admit_waiting(step)
        return step

    def mark_pending(self, step: SchedulerOutput) -> None:
        """The next step is decided before the outcomes of this one are known.

        Its tokens are pending from here on, and whoever gets its last one needs no blocks any more.
        """
        for request in step.sampled_requests:
            request.num_pending_tokens = int(request.status < RequestStatus.FINISHED)
        over = [request for request in step.sampled_requests if request.is_done]
        for request in over:
            self.blocks.release(request)
        if over:
            self._remove_finished()

    def update(self, step: SchedulerOutput, outcomes: Sequence[Outcome]) -> list[Request]:
        """Take what `step.sampled_requests` got; returns the requests that ended. Steps come in their order."""
        finished = list(step.failed)
        for request, outcome in zip(step.sampled_requests, outcomes, strict=True):
            if request.status >= RequestStatus.FINISHED:
                continue  # by the step before, when this one was under way
            request.take(outcome)
            if request.status >= RequestStatus.FINISHED:
                finished.append(request)
        for request in finished:
            self._finish(request)
        if finished:
            self._remove_finished()
        return finished

    def rollback(self, step: SchedulerOutput) -> None:
        """Nothing of the step was computed, for want of memory: undo it, and make steps at most half as large.

        The outcomes of the step before are known. Everything that runs gives its blocks back and comes again in the
        same order; nobody but the requests knew of the step.
        """
        assert not step.failed, "there was something to compute"
        # A row that decodes takes one token, so rows are limited by tokens.
        self.max_batched_tokens = step.num_tokens // 2
        self.max_num_seqs = min(self.max_num_seqs, self.max_batched_tokens)
        self.cache.rollback_step()
        for chunk in step.chunks:
            chunk.request.num_computed_tokens = chunk.start
            self._unfork(chunk)
        while self.running:
            self._preempt(self.running[-1], step)
        for admission in step.admissions:
            self._rollback_admission(admission)

    def _remove_finished(self) -> None:
        """Whoever is over leaves."""
        self.waiting = deque(request for request in self.waiting if not request.is_done)
        self.running = remove_finished(self.running, {request.row_index for request in self.waiting})

    # Running requests

    def _schedule_running(self, step: SchedulerOutput) -> bool:
        """False if one of them had no room."""
        for request in self._running_in_order():
            if step.num_tokens_left == 0:
                break
            num_tokens = step.num_schedulable_tokens(request)
            if num_tokens and not self._make_room(request, num_tokens, step):
                return False
            if num_tokens:
                self._schedule_chunk(request, num_tokens, step)
        return True

    def _running_in_order(self) -> Iterator[Request]:
        """The running requests, also while the last of them are being preempted."""
        position = 0
        while position < len(self.running):
            yield self.running[position]
            position += 1

    def _make_room(self, request: Request, num_tokens: int, step: SchedulerOutput) -> bool:
        """Preempt from the back until the chunk fits; False if `request` itself had to go, or must wait for results."""
        stop = request.num_computed_tokens + num_tokens
        while (needed := self.blocks.num_missing(request, stop)) > self.cache.num_available:
            step.num_refused_though_free += self.cache.pool.num_free >= needed
            victim = self.running[-1] if len(self.running) > 1 else self._last_waiting_holder()
            if (victim or request).num_pending_tokens:
                return False
            if victim is None:
                self._fail(request, step)
                return False
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _last_waiting_holder(self) -> Request | None:
        """The last of the later samples that hold their prompt before they run. They share it with those that do."""
        return next((request for request in reversed(self.waiting) if request.block_table), None)

    def _preempt(self, victim: Request, step: SchedulerOutput) -> None:
        if victim.status is RequestStatus.RUNNING:
            assert self.running.pop() is victim
            self.waiting.appendleft(victim)
        victim.status, victim.num_lost_tokens = RequestStatus.PREEMPTED, victim.num_computed_tokens
        self.blocks.release(victim)
        step.preempted.append(victim)

    def _fail(self, request: Request, step: SchedulerOutput) -> None:
        """The last one running, and the whole pool is too small for it, or for the prompt of its row."""
        error = (
            f"the row needs more than the {self.capacity_tokens} tokens that the KV pool has in all "
            f"(prompt {request.num_prompt_tokens}, generated {len(request.output_token_ids)}, "
            f"up to {request.num_prompt_tokens + request.max_tokens} asked for); "
            "lower sampling.max_tokens, or raise engine.num_blocks or engine.memory_fraction"
        )
        for sample in (request, *request.later_samples):
            sample.finish(FinishReason.ERROR, error)
            step.failed.append(sample)

    # Waiting requests

    def _admit_waiting(self, step: SchedulerOutput) -> None:
        reservation: Reservation | None = None
        while self.waiting and step.num_tokens_left and not step.failed and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if request.computes_whole_prompt and not step.num_prompt_logits_left:
                return
            found = self.blocks.find(request)
            reservation = reservation or self._reservation()
            reservation.add(request, found)
            if self.running and reservation.peak() > self.cache.pool.num_blocks:
                step.waits_for_blocks = True
                step.waits_for_reservation = self._fits_now(request, found)
                return
            self._admit(self.waiting.popleft(), found, step)

    def _admit(self, request: Request, found: FoundBlocks, step: SchedulerOutput) -> None:
        is_first = request.num_cached_tokens is None
        self.blocks.take(request, found)
        num_recomputed = max(request.num_lost_tokens - request.num_computed_tokens, 0)
        num_matched = len(found.matched) * self.cache.block_size
        step.admissions.append(Admission(request, is_first, num_matched, found.num_copied, num_recomputed))
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        # A later sample admitted in the step that computes its prompt has no token to compute yet.
        num_tokens = step.num_schedulable_tokens(request)
        if num_tokens and self._make_room(request, num_tokens, step):
            self._schedule_chunk(request, num_tokens, step)
            copies, repeats = self.blocks.copies_for(request, found)
            step.copies += copies
            step.repeats += repeats

    def _reservation(self) -> Reservation:
        reservation = Reservation(self.blocks, self.expected_tokens)
        for request in self.running:
            reservation.add(request)
        return reservation

    def _fits_now(self, request: Request, found: FoundBlocks) -> bool:
        """Whether the known tokens would fit at this moment, growth of all rows left aside."""
        num_missing = self.blocks.num_missing(request, request.num_tokens) - len(found.matched)
        # An idle block that is taken is among those that could be allocated.
        return num_missing + sum(map(self.cache.is_idle, found.matched)) <= self.cache.num_available

    # Both

    def _schedule_chunk(self, request: Request, num_tokens: int, step: SchedulerOutput) -> None:
        start = request.num_computed_tokens
        stop = start + num_tokens
        step.copies += self.blocks.extend(request, stop)
        step.num_tokens_left -= num_tokens
        samples = self._fork(request) if stop == request.num_tokens else []
        chunk = ScheduledChunk(request, start, num_tokens, samples)
        step.num_prompt_logits_left -= len(chunk.scored)
        step.chunks.append(chunk)

    def _fork(self, request: Request) -> list[Request]:
        """Whoever takes a token after the last known one of `request`: at the end of a prompt every sample."""
        samples = [request, *request.later_samples]
        self.blocks.fork(request)
        self.waiting.extendleft(reversed(request.later_samples))
        request.later_samples = ()
        return samples

    def _rollback_admission(self, admission: Admission) -> None:
        """The request is as it was before it came: its next admission is accounted for in place of this one."""
        request = admission.request
        if admission.is_first:
            request.status, request.num_cached_tokens, request.num_lost_tokens = RequestStatus.WAITING, None, 0
        else:
            num_found = admission.num_matched_tokens + admission.num_copied_tokens
            request.num_lost_tokens = max(request.num_lost_tokens, num_found + admission.num_recomputed_tokens)

    def _unfork(self, chunk: ScheduledChunk) -> None:
        later = chunk.samples[1:]
        if later:
            self.running = [request for request in self.running if request not in later]
            self.waiting = deque(request for request in self.waiting if request not in later)
            self.blocks.unfork(chunk.request, later)

    def _finish(self, request: Request) -> None:
        is_sound = request.finish_reason is not FinishReason.ERROR
        self.blocks.release(request, is_sound=is_sound)
        if is_sound:
            self.expected_tokens.observe(len(request.output_token_ids))

    def check_integrity(self) -> None:
        """Pool, index and requests agree; nothing of a request that neither runs nor is a later sample is held."""
        holders = [request for request in (*self.running, *self.waiting) if request.block_table]
        self.cache.check_integrity([request.block_table for request in holders])
        for request in holders:
            assert self.blocks.num_blocks(request.num_computed_tokens) == len(request.block_table)
            assert request.num_computed_tokens <= request.num_tokens
            assert request.status is RequestStatus.RUNNING or request.num_computed_tokens == request.num_prompt_tokens
        for request in self.running:
            assert request.status is RequestStatus.RUNNING
            assert request.block_table
        for request in self.waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert request.sample_index or request.status is RequestStatus.PREEMPTED or not request.block_table
