"""Philox 4x32-10 draws on the device: those of the engine's host generator, bit for bit. Knows no token and no sampler.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Key words: low and high half of the 64-bit key;
counter words: position, sample, 0, 0; of the result r the draw is ((r0 << 21) ^ (r1 >> 11)) * 2**-53.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 128


# Compiled once, however many draws there are and wherever their columns begin.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["keys_ptr", "positions_ptr", "samples_ptr"])
def uniform_kernel(
    keys_ptr: tl.tensor,  # [N] int64, the bits of an unsigned key
    positions_ptr: tl.tensor,  # [N] int64
    samples_ptr: tl.tensor,  # [N] int64
    bits_ptr: tl.tensor,  # [N] int64: 53 random bits
    count: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Grid (N / TILE). Words are kept in 64 bits, so that a product has its high half at hand."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = index < count
    key = tl.load(keys_ptr + index, mask=mask, other=0).to(tl.uint64)
    c0 = tl.load(positions_ptr + index, mask=mask, other=0).to(tl.uint64) & 0xFFFFFFFF
    c1 = tl.load(samples_ptr + index, mask=mask, other=0).to(tl.uint64) & 0xFFFFFFFF
    c2 = tl.zeros([TILE], tl.uint64)
    c3 = tl.zeros([TILE], tl.uint64)
    k0 = key & 0xFFFFFFFF
    k1 = key >> 32
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & 0xFFFFFFFF
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & 0xFFFFFFFF
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    tl.store(bits_ptr + index, ((c0 << 21) ^ (c1 >> 11)).to(tl.int64), mask=mask)


def random_bits(keys: Tensor, positions: Tensor, samples: Tensor) -> Tensor:
    """53 random bits [N] int64 for every (key, token position, sample index), each [N] int64 and contiguous."""
    bits = torch.empty_like(keys)
    uniform_kernel[(triton.cdiv(len(keys), _TILE),)](keys, positions, samples, bits, len(keys), TILE=_TILE, num_warps=4)
    return bits


def uniform(keys: Tensor, positions: Tensor, samples: Tensor) -> Tensor:
    """One draw in [0, 1) [N] float64, exactly the host's."""
    return random_bits(keys, positions, samples).double() * 2.0**-53
