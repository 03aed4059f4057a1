"""Scheduler: decides which tokens of which requests the next step computes, and in which blocks. Plain Python.

There are no prefill and decode phases: a request has `num_tokens` known tokens of which `num_computed_tokens` are
computed, and each step lets it catch up (the idea of vLLM's scheduler). The rules:

1. Running requests come first, in the order of their admission. Only the token budget of the step cuts a chunk, or, for
   a prompt with prompt_logprobs, the number of prompt logits that one step computes.
2. Waiting requests follow strictly in order, none skipped, while the pool is expected to hold them to their end.
3. A prompt block enters the prefix cache when the chunk that fills it is scheduled, so that rows of the same step share
   it: every layer writes K and V before it attends. The beginning of a block can be shared in the same step too: the
   tokens that this step computes are written to both blocks, earlier ones are copied.
4. When a chunk ends the prompt of a row, its logits give the first token of every sample of the row. The later samples
   hold the blocks of the prompt from then on, and are the next to be admitted.
5. When the pool is full nevertheless, the request admitted last is preempted and is the next to be admitted again.
6. A step may be scheduled while the one before is in flight. The tokens which that one samples are pending: they count,
   and a request whose last token is pending is removed at once. A request with a pending token is neither preempted nor
   failed, as that token may end it.

A request that its pending token ends has one superfluous token in the step in flight. Its blocks can be given to others
all the same: steps run one after the other on the device, so whatever a later step writes or copies is written after
the K and V of that token, whose slot is behind the prompt and so behind everything that others may share.
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

    Invariant: `running` is in the order of admission; every waiting request comes after every running one in visiting
    order, except preempted requests and later samples of a running row, which are at the front of the queue.
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
        """Number of token slots in the whole pool."""
        return self.cache.pool.num_blocks * self.cache.block_size

    def add(self, request: Request) -> None:
        """Append the first sample of a row to the queue. Its prompt must fit the pool (`capacity_tokens`)."""
        assert 0 < request.num_prompt_tokens <= self.capacity_tokens
        self.waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        """Schedule one step and apply it to the blocks; its tokens count as computed from here on.

        Raises CapacityError when a step of one token was too large for the device.
        """
        if not self.max_batched_tokens:
            raise CapacityError(
                "the device has no memory left for a step of a single token; finished rows are kept: "
                "lower engine.memory_fraction or engine.num_blocks, and run the same command again"
            )
        self.blocks.begin_step()
        step = SchedulerOutput(self.max_batched_tokens)
        if self._schedule_running(step) and not step.preempted:
            self._admit_waiting(step)
        return step

    def mark_pending(self, step: SchedulerOutput) -> None:
        """Mark the tokens that a step in flight samples as pending, so that the next step can be scheduled.

        Requests whose last token is pending are removed, and their blocks released.
        """
        for request in step.sampled_requests:
            request.num_pending_tokens = int(request.status < RequestStatus.FINISHED)
        done = [request for request in step.sampled_requests if request.is_done]
        for request in done:
            self.blocks.release(request)
        if done:
            self._remove_finished()

    def update(self, step: SchedulerOutput, outcomes: Sequence[Outcome]) -> list[Request]:
        """Apply the outcomes of `step.sampled_requests`; return the finished requests. Steps come in their order."""
        finished = list(step.failed)
        for request, outcome in zip(step.sampled_requests, outcomes, strict=True):
            if request.status >= RequestStatus.FINISHED:
                continue  # it finished with the step before, while this one was in flight
            request.take(outcome)
            if request.status >= RequestStatus.FINISHED:
                finished.append(request)
        for request in finished:
            self._finish(request)
        if finished:
            self._remove_finished()
        return finished

    def rollback(self, step: SchedulerOutput) -> None:
        """Undo a step for which the device had no memory, and halve the size of later steps.

        The outcomes of the step before have been applied. Every running request is preempted, to be admitted again in
        the same order. Only the requests, their blocks and the prefix cache have seen the step.
        """
        assert not step.failed, "a step that fails a request computes nothing"
        # A decoding request takes one token, so the token budget bounds the number of requests.
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
        """Remove the finished requests, and those whose last token is pending, from both queues."""
        self.waiting = deque(request for request in self.waiting if not request.is_done)
        self.running = remove_finished(self.running, {request.row_index for request in self.waiting})

    # Running requests

    def _schedule_running(self, step: SchedulerOutput) -> bool:
        """Schedule the running requests; return False if one of them did not fit the pool."""
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
        """Yield the running requests in order, while preemption may shorten the list at its end."""
        index = 0
        while index < len(self.running):
            yield self.running[index]
            index += 1

    def _make_room(self, request: Request, num_tokens: int, step: SchedulerOutput) -> bool:
        """Preempt from the back until the chunk fits; return False if `request` is preempted, fails or must wait."""
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
        """Return the last waiting sample that already holds the blocks of its prompt; None without one."""
        return next((request for request in reversed(self.waiting) if request.block_table), None)

    def _preempt(self, victim: Request, step: SchedulerOutput) -> None:
        if victim.status is RequestStatus.RUNNING:
            assert self.running.pop() is victim
            self.waiting.appendleft(victim)
        victim.status, victim.num_lost_tokens = RequestStatus.PREEMPTED, victim.num_computed_tokens
        self.blocks.release(victim)
        step.preempted.append(victim)

    def _fail(self, request: Request, step: SchedulerOutput) -> None:
        """Fail the only running request, as the whole pool is too small for it, with all samples of its row."""
        error = (
            f"the row needs more than the {self.capacity_tokens} tokens that the whole KV pool holds "
            f"(prompt {request.num_prompt_tokens}, generated {len(request.output_token_ids)}, "
            f"up to {request.num_prompt_tokens + request.max_tokens} requested); "
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
        # A later sample that is admitted in the step that computes its prompt has no token to compute yet.
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
        """Whether the known tokens fit the pool now, leaving aside how all rows will grow."""
        num_missing = self.blocks.num_missing(request, request.num_tokens) - len(found.matched)
        # A matched idle block counts as available, so taking it makes one block fewer available.
        return num_missing + sum(map(self.cache.is_idle, found.matched)) <= self.cache.num_available

    # Running and waiting requests

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
        """Return the requests that sample from the last token of `request`: at the end of a prompt, all its samples."""
        samples = [request, *request.later_samples]
        self.blocks.fork(request)
        self.waiting.extendleft(reversed(request.later_samples))
        request.later_samples = ()
        return samples

    def _rollback_admission(self, admission: Admission) -> None:
        """Restore the counts that the admission changed, so that the next admission is counted instead of this one."""
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
        """Assert that pool, index and requests agree: only running requests and waiting later samples hold blocks."""
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
