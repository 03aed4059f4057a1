"""Philox 4x32-10, a counter-based random generator: the draw of (key, counter) depends on no state and no order.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Tested against the authors' known answers.

Every other implementation of a draw must use the same mapping (words have 32 bits, word 0 is the lowest):

    key 0, 1              low and high word of the row's 64-bit rng_key
    counter 0, 1, 2, 3    token position (number of tokens of the completion before this one), sample index, 0, 0
    result words r0, r1   the 53-bit integer b = (r0 << 21) ^ (r1 >> 11); r2 and r3 are not used
    uniform               b * 2**-53 in float64, in [0, 1)

`contract.py` defines which token a draw samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

Words = npt.NDArray[np.uint64]  # 32-bit words


def philox_4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Return four random 32-bit words for every (counter, key); all arrays have the same shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_ in range(_ROUNDS):
        bump0, bump1 = (np.uint64(round_ * weyl & 0xFFFFFFFF) for weyl in _WEYL)
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ ((k0 + bump0) & _LOW),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ ((k1 + bump1) & _LOW),
            p0 & _LOW,
        )
    return c0, c1, c2, c3


def uniform(
    keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], samples: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Return a draw in [0, 1) with 53 random bits for every (64-bit key, token position, sample index)."""
    zero = np.zeros_like(positions)
    high, low, _, _ = philox_4x32((positions & _LOW, samples, zero, zero), (keys & _LOW, keys >> _SHIFT))
    bits = (high << np.uint64(21)) ^ (low >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
