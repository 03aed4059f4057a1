"""What lies between the matrix products of a Llama-like layer, each in one pass, compiled by numba at first use.

Arithmetic is in float32 and rounded once at the end, where a chain of torch operations rounds after each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange
from torch import Tensor

from batchgen_kernels.cpu_compile import as_bits, compiled
from batchgen_kernels.vector import narrow, widen


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """hidden [T, size] / root mean square of its row * weight [size]."""
    output = hidden.new_empty(hidden.shape)
    _rms_norm(as_bits(hidden), as_bits(weight), np.float32(eps), as_bits(output))
    return output


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> None:
    """Turn the first `num_heads` of heads [T, heads, size] in place by the angles of cos and sin [T, size].

    Halves of a head are the two coordinates, as in GPT-NeoX (RoPE, arXiv 2104.09864).
    """
    assert heads.is_contiguous()
    _rotate(as_bits(heads), as_bits(cos), as_bits(sin), num_heads)


@compiled(parallel=True)
def _rms_norm(hidden: Any, weight: Any, eps: Any, output: Any) -> None:
    size = hidden.shape[1]
    for row in prange(len(hidden)):
        squares = np.float32(0)
        for column in range(size):
            number = widen(hidden[row, column])
            squares += number * number
        factor = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for column in range(size):
            output[row, column] = narrow(output, widen(hidden[row, column]) * factor * widen(weight[column]))


@compiled(parallel=True)
def _rotate(heads: Any, cos: Any, sin: Any, num_heads: Any) -> None:
    half = heads.shape[2] // 2
    for row in prange(len(heads)):
        for head in range(num_heads):
            for column in range(half):
                x, y = widen(heads[row, head, column]), widen(heads[row, head, half + column])
                left = x * widen(cos[row, column]) - y * widen(sin[row, column])
                right = y * widen(cos[row, half + column]) + x * widen(sin[row, half + column])
                heads[row, head, column] = narrow(heads, left)
                heads[row, head, half + column] = narrow(heads, right)
