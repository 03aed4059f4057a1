"""The first differing token where a prefix that looks shared is not: a date, an id or a counter in front of it.

What it sees: two prompts that part at some token and then have RUN or more equal tokens in a row, which begin at most
GAP tokens later in the one and at most SHIFT tokens later or earlier than that in the other. The length of that run is
what the variable part costs for this pair, because no cache can share what follows a difference.

What it does not see: a second break behind the first, a variable part longer than GAP tokens, an equal part shorter
than RUN tokens, parts in another order, and what none of the compared pairs shows. Pairs are neighbours in
lexicographic order. Behind an id in front, neighbours may have different system prompts by chance, so without labels
the loss found is too low where there are many of them. With labels every pair has the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from batchgen.plan.order import Order
from batchgen.plan.token_store import PackedTokens, Positions, TokenIds, shared_lengths

GAP = 32
SHIFT = 8
RUN = 64


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The break that costs most among the pairs that were compared."""

    token: int  # where the pairs part, counted from 0
    num_compared: int
    num_pairs: int  # that part at this token and go on with an equal run
    lost_tokens: int  # in those runs
    example: tuple[int, int]  # positions in the token store of the pair with the longest run


class _Pairs(NamedTuple):
    left: Positions
    right: Positions


def first_difference(
    tokens: PackedTokens, order: Order, labels: npt.ArrayLike | None = None, *, num_pairs: int = 1000
) -> FirstDifference | None:
    """The most costly break among `num_pairs` evenly spread pairs of neighbours; None if there is none.

    `order` is lexicographic, or the visiting order made of it. `labels[position]` is an integer that prompts with the
    same system prompt, or template, have in common.
    """
    pairs = _sample(_neighbours(order, labels), num_pairs)
    shared = shared_lengths(tokens, pairs.left, pairs.right, np.zeros(len(pairs.left), np.int32))
    lost = np.array(
        [_equal_after(tokens[a][at:], tokens[b][at:]) for a, b, at in zip(*pairs, shared, strict=True)], np.int64
    )
    if not lost.any():
        return None
    token = int(np.bincount(shared, lost).argmax())
    here = np.flatnonzero((shared == token) & (lost > 0))
    longest = here[lost[here].argmax()]
    return FirstDifference(
        token=token,
        num_compared=len(lost),
        num_pairs=len(here),
        lost_tokens=int(lost[here].sum()),
        example=(int(pairs.left[longest]), int(pairs.right[longest])),
    )


def _neighbours(order: Order, labels: npt.ArrayLike | None) -> _Pairs:
    """All pairs of neighbours in the order, with labels of neighbours among the prompts of one label."""
    positions = order.positions
    if labels is None:
        return _Pairs(positions[:-1], positions[1:])
    label = np.asarray(labels)[positions]
    by_label = np.argsort(label, kind="stable")
    label, positions = label[by_label], positions[by_label]
    same = label[:-1] == label[1:]
    return _Pairs(positions[:-1][same], positions[1:][same])


def _sample(pairs: _Pairs, num_pairs: int) -> _Pairs:
    """At most `num_pairs`, evenly spread."""
    total = len(pairs.left)
    chosen = np.arange(min(num_pairs, total)) * total // max(min(num_pairs, total), 1)
    return _Pairs(pairs.left[chosen], pairs.right[chosen])


def _equal_after(a: TokenIds, b: TokenIds) -> int:
    """Length of the longest equal run behind the beginnings of two rests that part at once; 0 if it is too short."""
    return max(_equal_run(a[max(-shift, 0) :], b[max(shift, 0) :]) for shift in range(-SHIFT, SHIFT + 1))


def _equal_run(a: TokenIds, b: TokenIds) -> int:
    """Length of the first equal run of RUN tokens or more that begins within GAP tokens, 0 if there is none."""
    length = min(len(a), len(b))
    near = min(length, GAP + RUN)
    if near < RUN:
        return 0
    begins = np.flatnonzero(sliding_window_view(a[:near] == b[:near], RUN).all(axis=1))
    if not len(begins):
        return 0
    differs = np.flatnonzero(a[begins[0] : length] != b[begins[0] : length])
    return int(differs[0]) if len(differs) else length - int(begins[0])
