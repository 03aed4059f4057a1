"""How many leading tokens two prompts have in common, for many pairs at once."""

from __future__ import annotations

import numpy as np

from batchgen.plan.token_store import Lengths, PackedTokens, Positions, TokenIds

_WINDOW = np.arange(32)  # tokens that are compared at a time
_CHUNK = 1 << 13  # pairs that are compared at a time: 1 MiB of tokens, about what a CPU cache holds


def shared_lengths(tokens: PackedTokens, left: Positions, right: Positions, known: Lengths) -> Lengths:
    """Leading tokens that prompts left[i] and right[i] have in common, the first known[i] of them not looked at.

    The store is read from front to back along `left`, in chunks.
    """
    shared = known.astype(np.int32)
    by_position = np.argsort(left)
    for start in range(0, len(left), _CHUNK):
        chunk = by_position[start : start + _CHUNK]
        shared[chunk] = _compare(tokens, left[chunk], right[chunk], shared[chunk])
    return shared


def _compare(tokens: PackedTokens, left: Positions, right: Positions, known: Lengths) -> Lengths:
    shared, limit = known, np.minimum(tokens.lengths(left), tokens.lengths(right))
    active = np.flatnonzero(shared < limit)
    while len(active):
        at, room = shared[active], (limit - shared)[active]
        differs = _windows(tokens, left[active], at) != _windows(tokens, right[active], at)
        num_equal = np.where(differs.any(axis=1), differs.argmax(axis=1), len(_WINDOW))
        shared[active] += np.minimum(num_equal, room).astype(np.int32)
        active = active[(num_equal == len(_WINDOW)) & (room > len(_WINDOW))]
    return shared


def _windows(tokens: PackedTokens, positions: Positions, at: Lengths) -> TokenIds:
    """[prompts, window] tokens from `at` on; behind a prompt's end there are tokens of the next one, or repetitions."""
    return tokens.ids.take((tokens.offsets[positions] + at)[:, None] + _WINDOW, mode="clip")


def next_tokens(tokens: PackedTokens, positions: Positions, at: Lengths) -> TokenIds:
    """Token number at[i] of each prompt, -1 where the prompt ends there."""
    token = tokens.ids.take(tokens.offsets[positions] + at, mode="clip")
    token[at >= tokens.lengths(positions)] = -1
    return token
