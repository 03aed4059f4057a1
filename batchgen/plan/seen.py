"""What each prompt has in common with all that were visited before it, in whatever order they are visited."""

from __future__ import annotations

import numpy as np

from batchgen.plan.order import Order
from batchgen.plan.token_store import Lengths, Positions

_CHUNK = 1 << 16  # prompts taken as Python numbers at a time: quick to walk, and large


def seen_lengths(order: Order, visited: Positions) -> Lengths:
    """For every place of `visited` the leading tokens in common with any prompt visited before it.

    `order` is the lexicographic order of the same prompts. In it a prompt shares most with its nearest neighbour, on
    either side, of those visited before it: the least of what the neighbours from the one to the other share.
    """
    place_of = np.empty(int(visited.max(initial=-1)) + 1, np.int32)
    place_of[visited] = np.arange(len(visited))
    place = place_of[order.positions]
    seen = order.shared_with_before
    # These are visited after all that lie on their left and before all on their right: the value is right already.
    in_turn = (place == np.arange(len(place))) & (place == np.maximum.accumulate(place))
    _walk(place[~in_turn], seen[~in_turn], seen.data)
    return seen


def _walk(places: Lengths, shared_with_before: Lengths, seen: memoryview) -> None:
    """Set `seen` for these visiting places, which come in lexicographic order; linear.

    A stack keeps the rows that have met no earlier-visited one on their right yet: their places grow.
    """
    waiting: list[int] = []
    with_left: list[int] = []  # what each of them shares with the one before it on the stack
    for start in range(0, len(places), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for place, shared in zip(places[chunk].tolist(), shared_with_before[chunk].tolist(), strict=True):
            with_next = shared
            while waiting and waiting[-1] > place:
                left = with_left.pop()
                seen[waiting.pop()] = max(left, with_next)
                with_next = min(left, with_next)
            waiting.append(place)
            with_left.append(with_next)
    for place, left in zip(waiting, with_left, strict=True):
        seen[place] = left
