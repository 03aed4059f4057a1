"""Finds the token that breaks a common prefix: prompts that would share a long part but for a date, id or counter.

What it finds: two prompts that differ at some token and then have RUN or more equal tokens in a row, which begin at
most GAP tokens later in one prompt and at most SHIFT tokens later or earlier than that in the other. The length of that
run is what the variable part costs for this pair, because no cache can share what follows a difference.

What it misses: a second difference after the first, a variable part longer than GAP tokens, an equal part shorter than
RUN tokens, parts in a different order, and whatever no compared pair shows. Pairs are neighbours in lexicographic
order. After an id at the front, neighbours may have different system prompts by chance, so without labels the loss is
underestimated if there are many system prompts. With labels both prompts of every pair have the same one.
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
    """The most costly difference among the compared pairs."""

    token: int  # index of the first differing token, from 0
    num_compared: int
    num_pairs: int  # pairs that differ at this token first and have an equal run after it
    lost_tokens: int  # sum of the lengths of those runs
    example: tuple[int, int]  # positions in the token store of the pair with the longest run


class _Pairs(NamedTuple):
    left: Positions
    right: Positions


def first_difference(
    tokens: PackedTokens, order: Order, labels: npt.ArrayLike | None = None, *, num_pairs: int = 1000
) -> FirstDifference | None:
    """Return the most costly difference among `num_pairs` evenly spread pairs of neighbours; None if there is none.

    `order` is lexicographic, or the visiting order derived from it. `labels[position]` is an integer, equal for prompts
    with the same system prompt or template.
    """
    pairs = _sample(_neighbours(order, labels), num_pairs)
    shared = shared_lengths(tokens, pairs.left, pairs.right, np.zeros(len(pairs.left), np.int32))
    lost = np.array(
        [_equal_after(tokens[a][depth:], tokens[b][depth:]) for a, b, depth in zip(*pairs, shared, strict=True)],
        np.int64,
    )
    if not lost.any():
        return None
    token = int(np.bincount(shared, lost).argmax())
    at_token = np.flatnonzero((shared == token) & (lost > 0))
    longest = at_token[lost[at_token].argmax()]
    return FirstDifference(
        token=token,
        num_compared=len(lost),
        num_pairs=len(at_token),
        lost_tokens=int(lost[at_token].sum()),
        example=(int(pairs.left[longest]), int(pairs.right[longest])),
    )


def _neighbours(order: Order, labels: npt.ArrayLike | None) -> _Pairs:
    """Return all pairs of neighbours in the order; with labels, of neighbours among the prompts with the same label."""
    positions = order.positions
    if labels is None:
        return _Pairs(positions[:-1], positions[1:])
    label = np.asarray(labels)[positions]
    by_label = np.argsort(label, kind="stable")
    label, positions = label[by_label], positions[by_label]
    same = label[:-1] == label[1:]
    return _Pairs(positions[:-1][same], positions[1:][same])


def _sample(pairs: _Pairs, num_pairs: int) -> _Pairs:
    """Return at most `num_pairs` of the pairs, evenly spread."""
    total = len(pairs.left)
    chosen = np.arange(min(num_pairs, total)) * total // max(min(num_pairs, total), 1)
    return _Pairs(pairs.left[chosen], pairs.right[chosen])


def _equal_after(a: TokenIds, b: TokenIds) -> int:
    """Return the length of the longest equal run in two sequences that differ at once; 0 if all are too short."""
    return max(_equal_run(a[max(-shift, 0) :], b[max(shift, 0) :]) for shift in range(-SHIFT, SHIFT + 1))


def _equal_run(a: TokenIds, b: TokenIds) -> int:
    """Return the length of the first equal run of RUN or more tokens that begins within GAP tokens; 0 without one."""
    length = min(len(a), len(b))
    near = min(length, GAP + RUN)
    if near < RUN:
        return 0
    begins = np.flatnonzero(sliding_window_view(a[:near] == b[:near], RUN).all(axis=1))
    if not len(begins):
        return 0
    differs = np.flatnonzero(a[begins[0] : length] != b[begins[0] : length])
    return int(differs[0]) if len(differs) else length - int(begins[0])
