"""Rows with several samples, and runners that answer each of them differently or fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchgen.engine.request import Failed, Outcome, Request, SampledToken
from batchgen.engine.step import OutOfMemory, SchedulerOutput
from tests.engine.simulated import CheckingRunner

END = 3


class SampleRunner(CheckingRunner):
    """Gives every sample a token of its own."""

    def outcome(self, request: Request) -> Outcome:
        return SampledToken(200 + request.sample_index)


class EndingRunner(SampleRunner):
    """Ends every sample at some place of its own, and breaks it in some rows."""

    def outcome(self, request: Request) -> Outcome:
        position = request.num_output_tokens
        if request.row_index in self.broken_rows and position >= request.row_index % 3:
            return Failed("broken")
        ends = (5 * request.row_index + 3 * request.sample_index + position) % 7 == 6
        return SampledToken(END) if ends else super().outcome(request)


def with_samples(requests: Sequence[Request], n: int) -> list[Request]:
    """The first sample of every row, with its others."""
    for request in requests:
        request.end_token_ids = frozenset([END])
        request.later_samples = [replace(request, sample_index=sample, output_token_ids=[], block_table=[])
                                 for sample in range(1, n)]  # fmt: skip
    return list(requests)


def alone(row: int, sample: int, max_tokens: int) -> list[int]:
    """What EndingRunner gives a sample."""
    ends = [(5 * row + 3 * sample + position) % 7 == 6 for position in range(max_tokens)]
    length = ends.index(True) + 1 if True in ends else max_tokens
    return [END if ends[position] else 200 + sample for position in range(length)]


class SmallDevice(EndingRunner):
    """Has no memory at some calls, and never for more than `most_tokens`; it may have written part of the step."""

    def __init__(self, block_size: int, fails_at: frozenset[int] = frozenset(), most_tokens: int = 1000) -> None:
        super().__init__(block_size)
        self.fails_at = fails_at
        self.most_tokens = most_tokens
        self.num_calls = 0

    def run(self, step: SchedulerOutput) -> list[Outcome]:
        self.num_calls += 1
        if step.num_tokens > self.most_tokens or (self.num_calls in self.fails_at and step.num_tokens > 1):
            self.spoil(step)
            raise OutOfMemory
        return super().run(step)

    def spoil(self, step: SchedulerOutput) -> None:
        """What a forward that was broken off leaves in the slots that it was to write."""
        for chunk in step.chunks:
            for position in range(chunk.start, chunk.stop):
                self.slots[self.slot(chunk.request, position)] = [-1]
        for copy in step.copies:
            self.slots |= {(copy.target, offset): [-1] for offset in range(self.block_size)}
