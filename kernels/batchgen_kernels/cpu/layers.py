"""Fused RMSNorm and rotary kernels of a Llama-like layer, one pass each, compiled by numba at first use.

They compute in float32 and round once at the end, where a chain of torch operations rounds after each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from batchgen_kernels.cpu.compile import as_bits, compiled
from batchgen_kernels.cpu.vector import narrow, widen


class RMSNorm:
    """Divides a row by its root mean square and multiplies it with a weight [size]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = as_bits(weight), np.float32(eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [T, size] -> [T, size]."""
        output = torch.empty_like(hidden)
        _rms_norm(as_bits(hidden), self._weight, self._eps, as_bits(output))
        return output


def split_rotated(heads: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """heads [T, `num_heads` + 2 x KV heads, size] -> query, key and value [T, heads, size].

    Query and key are rotated by the angles of cos and sin [T, size]. The halves of a head are the two coordinates, as
    in GPT-NeoX (RoPE, arXiv 2104.09864).
    """
    num_tokens, num_all, size = heads.shape
    query = heads.new_empty(num_tokens, num_heads, size)
    key, value = heads.new_empty(2, num_tokens, (num_all - num_heads) // 2, size)
    _split_rotated(*map(as_bits, (heads, cos, sin, query, key, value)))
    return query, key, value


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
def _split_rotated(heads: Any, cos: Any, sin: Any, query: Any, key: Any, value: Any) -> None:
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    for row in prange(len(heads)):
        for head in range(num_heads):
            _rotate(heads[row, head], cos[row], sin[row], query[row, head])
        for head in range(num_kv_heads):
            _rotate(heads[row, num_heads + head], cos[row], sin[row], key[row, head])
            # Column by column, since numba takes over a second to compile the error messages of a slice assignment.
            for column in range(heads.shape[2]):
                value[row, head, column] = heads[row, num_heads + num_kv_heads + head, column]


@compiled()
def _rotate(head: Any, cos: Any, sin: Any, output: Any) -> None:
    half = len(head) // 2
    for column in range(half):
        x, y = widen(head[column]), widen(head[half + column])
        output[column] = narrow(output, x * widen(cos[column]) - y * widen(sin[column]))
        output[half + column] = narrow(output, y * widen(cos[half + column]) + x * widen(sin[half + column]))
