"""Merge the parts of a query by log-sum-exp (Hydragen, arXiv 2402.05099, equation 4), one program a query and head."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def merge_kernel(
    partial_ptr: tl.tensor,  # [partials, num_heads, VALUE_SIZE] float32
    lse_ptr: tl.tensor,  # [partials, num_heads] float32, base 2
    output_ptr: tl.tensor,  # [T, num_heads, VALUE_SIZE]
    tokens_ptr: tl.tensor,  # [merged] int32: tokens with more than one part
    partial_starts_ptr: tl.tensor,  # [T + 1] int32
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
) -> None:
    """Merge one head on the grid (merged, heads). A negative token is padding. A part without keys has lse -inf."""
    token = tl.load(tokens_ptr + tl.program_id(0)).to(tl.int64)
    if token < 0:
        return
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    dims = tl.arange(0, VALUE_TILE)
    is_dim = dims < VALUE_SIZE
    output = tl.zeros([VALUE_TILE], tl.float32)
    best = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    start = tl.load(partial_starts_ptr + token).to(tl.int64)
    stop = tl.load(partial_starts_ptr + token + 1).to(tl.int64)
    for part in range(start, stop):
        row = part * num_heads + head
        lse = tl.load(lse_ptr + row)
        new_best = tl.maximum(best, lse)
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        decay = tl.exp2(best - shift)
        weight = tl.exp2(lse - shift)
        output = output * decay + tl.load(partial_ptr + row * VALUE_SIZE + dims, mask=is_dim, other=0.0) * weight
        total = total * decay + weight
        best = new_best
    output = output / tl.where(total == 0.0, 1.0, total)
    pointers = output_ptr + (token * num_heads + head) * VALUE_SIZE + dims
    tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=is_dim)


def merge_parts(partials: Tensor, lse: Tensor, tokens: Tensor, partial_starts: Tensor, output: Tensor) -> None:
    """Write the merged parts of the queries `tokens` to `output` [T, num_heads, value_head_size].

    partials [P, num_heads, value_head_size] and lse [P, num_heads] float32; token t has the parts
    [partial_starts[t], partial_starts[t + 1]); -1 in `tokens` is padding.
    """
    _, num_heads, value_size = output.shape
    merge_kernel[(len(tokens), num_heads)](
        partials, lse, output, tokens, partial_starts,
        VALUE_SIZE=value_size, VALUE_TILE=triton.next_power_of_2(value_size), num_warps=1,
    )  # fmt: skip
