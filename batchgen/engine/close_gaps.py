"""What a row shares with the next one when rows between them leave. Pure, on requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from batchgen.engine.request import Request


def close_gaps(running: Sequence[Request], waiting_rows: Collection[int]) -> list[Request]:
    """`running` without those that are over; `waiting_rows` have samples that wait.

    Should the row before a gap come again, its next row is the one behind the gap: what it shares with that is the
    least over the gap. Samples of one row have the same next row.
    """
    staying: list[Request] = []
    left = {request.row_index for request in running if not request.is_over}.union(waiting_rows)
    for request in running:
        if not request.is_over:
            staying.append(request)
        elif staying and request.shared_with_next is not None:
            before = staying[-1]
            if before.row_index == request.row_index or request.row_index not in left:
                assert before.shared_with_next is not None
                before.shared_with_next = min(before.shared_with_next, request.shared_with_next)
    return staying
