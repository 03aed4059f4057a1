"""Vector instructions for the numba kernels of this folder, where LLVM does not vectorise plain loops well enough.

numba sees stored numbers as integers, whose type names their format: uint32 for float32, uint16 for bfloat16, int16 for
float16. A **word** has 32 bits: one float32, or two neighbouring 16-bit floats; a vector has 16 words. On words, matrix
products and transpositions are the same code for every dtype; only the multiply-add of two words differs. CPUs with
AVX512-BF16 do it for a pair of bfloat16 in one instruction, all others in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from batchgen_kernels.cpu.llvm import (
    BITS_TO_FLOAT,
    FLOAT32,
    FLOAT32S,
    INT8,
    INT32,
    INT32S,
    INT64,
    LANES,
    BFloat,
    fma,
    int64,
    load,
    pointer,
    shuffle,
    splat,
    store,
)

ROWS = 4  # rows of the left matrix in one call of `multiply`
_FEATURES = llvm.get_host_cpu_features()
# columns of the right matrix in one call: as many as there are registers for the sums
COLUMNS = 4 * LANES if _FEATURES.get("avx512f") else LANES

_HAS_BFLOAT16 = bool(_FEATURES.get("avx512bf16"))

_BFLOATS = ir.VectorType(BFloat(), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), 2 * LANES)


def _add_float32(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return fma(builder, total, builder.bitcast(left, FLOAT32S), builder.bitcast(right, FLOAT32S))


def _add_bfloat16_native(builder: Any, total: Any, left: Any, right: Any) -> Any:
    kind = ir.FunctionType(FLOAT32S, (FLOAT32S, _BFLOATS, _BFLOATS))
    dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(dot, (total, builder.bitcast(left, _BFLOATS), builder.bitcast(right, _BFLOATS)))


def _add_bfloat16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """Widen pairs of bfloat16, each the upper half of the float32 of the same value, and add their products."""
    sixteen, upper = (splat(builder, ir.Constant(INT32, value), INT32S) for value in (16, 0xFFFF0000))
    for widen_half, operand in ((builder.shl, sixteen), (builder.and_, upper)):
        total = _add_float32(builder, total, widen_half(left, operand), widen_half(right, operand))
    return total


def _add_float16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    left, right = (builder.bitcast(words, _HALVES) for words in (left, right))
    for parity in (0, 1):
        lanes = list(range(parity, 2 * LANES, 2))
        halves = [builder.fpext(shuffle(builder, pairs, pairs, lanes), FLOAT32S) for pairs in (left, right)]
        total = fma(builder, total, *halves)
    return total


_MULTIPLY_ADD: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    types.uint32: _add_float32,
    types.uint16: _add_bfloat16_native if _HAS_BFLOAT16 else _add_bfloat16,
    types.int16: _add_float16,
}


@intrinsic
def address(_context: Any, array: Any) -> Any:
    """Return the address of an array's first number, in bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, INT64)

    return types.int64(array), generate


@intrinsic
def call_address(_context: Any, target: Any, arguments: Any) -> Any:
    """Call the compiled function at an address with a tuple of arguments of exactly its types. It returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds = tuple(signature.args[1])
        function = pointer(builder, given[0], context.call_conv.get_function_type(types.none, kinds))
        values = cgutils.unpack_tuple(builder, given[1], len(kinds))
        context.call_conv.call_function(builder, function, types.none, kinds, values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@intrinsic
def prefetch(_context: Any, target: Any) -> Any:
    """Prefetch the cache line at an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = pointer(builder, arguments[0], INT8)
        kind = ir.FunctionType(ir.VoidType(), (line.type, INT32, INT32, INT32))
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for_reading, locality, is_data = (ir.Constant(INT32, value) for value in (0, 2, 1))
        builder.call(function, (line, for_reading, locality, is_data))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def multiply(
    _context: Any,
    prototype: Any,
    left: Any,
    left_stride: Any,
    right: Any,
    right_stride: Any,
    num: Any,
    out: Any,
    stride: Any,
) -> Any:
    """Add left [ROWS, num words] x right [num words, COLUMNS] to out [ROWS, COLUMNS] float32.

    `left`, `right` and `out` are addresses, strides between rows are in words; words have the dtype of `prototype`.
    """
    add = _MULTIPLY_ADD[prototype.dtype]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, a, a_stride, b, b_stride, size, c, c_stride = arguments

        def at(base: Any, row: Any, row_stride: Any, offset: Any = 0) -> Any:
            words = builder.add(builder.mul(row, row_stride), int64(offset))
            return builder.add(base, builder.mul(words, int64(4)))

        cells = [(row, column) for row in range(ROWS) for column in range(0, COLUMNS, LANES)]
        targets = {cell: at(c, int64(cell[0]), c_stride, cell[1]) for cell in cells}
        totals = {cell: cgutils.alloca_once_value(builder, load(builder, targets[cell], FLOAT32S)) for cell in cells}
        with cgutils.for_range(builder, size, intp=INT64) as loop:
            columns = {
                column: load(builder, at(b, loop.index, b_stride, column), INT32S)
                for column in range(0, COLUMNS, LANES)
            }
            for row in range(ROWS):
                address = builder.add(at(a, int64(row), a_stride), builder.mul(loop.index, int64(4)))
                word = splat(builder, load(builder, address, INT32), INT32S)
                for column, words in columns.items():
                    total = totals[row, column]
                    builder.store(add(builder, builder.load(total), word, words), total)
        for cell in cells:
            store(builder, builder.load(totals[cell]), targets[cell])
        return context.get_dummy_value()

    size = types.int64
    return types.void(prototype, size, size, size, size, size, size, size), generate


@intrinsic
def transpose(_context: Any, base: Any, rows: Any, row_bytes: Any, out: Any, stride: Any) -> Any:
    """Write the LANES rows of LANES words at `base + rows[i] * row_bytes` to out [LANES words, LANES], transposed.

    `base` and `out` are addresses, `rows` the address of LANES int64, `stride` that of `out` in words.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, ids, size, target, target_stride = arguments
        lines = []
        for lane in range(LANES):
            row = load(builder, builder.add(ids, int64(8 * lane)), INT64)
            lines.append(load(builder, builder.add(source, builder.mul(row, size)), INT32S))
        for half in (8, 4, 2, 1):  # swap the off-diagonal quarters of smaller and smaller squares
            lower = [lane if lane & half == 0 else LANES + lane - half for lane in range(LANES)]
            upper = [lane + half if lane & half == 0 else LANES + lane for lane in range(LANES)]
            for line in range(LANES):
                if line & half == 0:
                    pair = lines[line], lines[line + half]
                    lines[line], lines[line + half] = (shuffle(builder, *pair, lanes) for lanes in (lower, upper))
        for line, words in enumerate(lines):
            offset = builder.mul(builder.mul(int64(line), target_stride), int64(4))
            store(builder, words, builder.add(target, offset))
        return context.get_dummy_value()

    size = types.int64
    return types.void(size, size, size, size, size), generate


@intrinsic
def interleave(_context: Any, first: Any, second: Any, out: Any) -> Any:
    """Write the 2 * LANES 16-bit numbers at the address `first` and at `second` to `out` as pairs, 2 * LANES words."""
    numbers = ir.VectorType(ir.IntType(16), 2 * LANES)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, high = (load(builder, target, numbers) for target in arguments[:2])
        for half in range(2):
            lanes = [half * LANES + lane // 2 + lane % 2 * 2 * LANES for lane in range(2 * LANES)]
            target = builder.add(arguments[2], int64(half * 4 * LANES))
            store(builder, shuffle(builder, low, high, lanes), target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def widen(_context: Any, bits: Any) -> Any:
    """Return a stored number as float32."""
    kind = BITS_TO_FLOAT[bits]

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = builder.bitcast(arguments[0], kind)
        return number if kind is FLOAT32 else builder.fpext(number, FLOAT32)

    return types.float32(bits), generate


@intrinsic
def narrow(_context: Any, prototype: Any, number: Any) -> Any:
    """Return the bits of a float32 in the dtype of the array `prototype`, rounded to nearest."""
    kind = BITS_TO_FLOAT[prototype.dtype]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rounded = arguments[1] if kind is FLOAT32 else builder.fptrunc(arguments[1], kind)
        return builder.bitcast(rounded, context.get_value_type(prototype.dtype))

    return prototype.dtype(prototype, types.float32), generate


@intrinsic
def float_bits(_context: Any, number: Any) -> Any:
    """Return the bits of a float32 as int32, which order positive numbers alike. `widen` of a uint32 is the inverse."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], INT32)

    return types.int32(types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """Return 2 ** exponent as float32 for an int32 exponent from -126 to 127, built from its bits."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(arguments[0], ir.Constant(INT32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(INT32, 23)), FLOAT32)

    return types.float32(types.int32), generate


@njit(fastmath={"contract"}, inline="always")
def exponential(x: Any) -> Any:
    """Return exp(x) for x <= 0 in float32, to 2 units in the last place; LLVM vectorises loops over it.

    x = n log 2 + r with |r| <= log 2 / 2; the polynomial is that of Cephes' expf (S. Moshier).
    """
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = (p * r * r + r + np.float32(1.0)) * _power_of_two(np.int32(n))
    return np.float32(0.0) if x < np.float32(-87.0) else power
