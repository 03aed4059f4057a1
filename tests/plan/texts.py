"""Short texts as prompts, a token a character, and what they share, the slow way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from batchgen.plan.token_store import PackedTokens

# Prefix forests: every text is a path through a small tree, with a tail of its own.
pieces = st.sampled_from(["a", "b", "aa", "cccc", "dddd", "eeeeeeee", "f" * 12])
forests = st.lists(st.lists(pieces, min_size=1, max_size=6).map("".join), min_size=1, max_size=24)


def pack(texts: Sequence[str]) -> PackedTokens:
    return PackedTokens.pack([np.frombuffer(text.encode(), np.uint8) for text in texts])


def common(a: str, b: str) -> int:
    return next(
        (visit_index for visit_index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def shared_with_next(texts: Sequence[str]) -> list[int]:
    return [common(a, b) for a, b in pairwise([*texts, ""])]
