"""Vector instructions for the numba kernels of this folder: what LLVM does not make of plain loops by itself.

numba sees the bits of a stored number, and their integer type says what they are: uint32 float32, uint16 bfloat16,
int16 float16. A **word** is 32 bits: one float32, or a pair of neighbouring 16-bit floats; a vector has 16 words. On
words, a product of matrices and a transposition are the same code for every dtype; only one multiply-and-add differs.
Processors with AVX512-BF16 do it for pairs of bfloat16 in one instruction, all others in float32.
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
    BYTE,
    FLOAT,
    FLOAT_TYPES,
    FLOATS,
    LANES,
    SIZE,
    WORD,
    WORDS,
    BFloat,
    constant,
    fma,
    load,
    pointer,
    shuffle,
    splat,
    store,
)

ROWS = 4  # of the left matrix that `multiply` takes at once
_FEATURES = llvm.get_host_cpu_features()
# of the right matrix: as many as there are registers to sum in
COLUMNS = 4 * LANES if _FEATURES.get("avx512f") else LANES

_HAS_BFLOAT16 = bool(_FEATURES.get("avx512bf16"))

_BFLOATS = ir.VectorType(BFloat(), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), 2 * LANES)


def _add_float32(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return fma(builder, total, builder.bitcast(left, FLOATS), builder.bitcast(right, FLOATS))


def _add_bfloat16_native(builder: Any, total: Any, left: Any, right: Any) -> Any:
    kind = ir.FunctionType(FLOATS, (FLOATS, _BFLOATS, _BFLOATS))
    dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(dot, (total, builder.bitcast(left, _BFLOATS), builder.bitcast(right, _BFLOATS)))


def _add_bfloat16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """A bfloat16 is the upper half of the float32 of the same value."""
    sixteen, upper = (splat(builder, ir.Constant(WORD, value), WORDS) for value in (16, 0xFFFF0000))
    for half, by in ((builder.shl, sixteen), (builder.and_, upper)):
        total = _add_float32(builder, total, half(left, by), half(right, by))
    return total


def _add_float16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    left, right = (builder.bitcast(words, _HALVES) for words in (left, right))
    for parity in (0, 1):
        lanes = list(range(parity, 2 * LANES, 2))
        halves = [builder.fpext(shuffle(builder, pairs, pairs, lanes), FLOATS) for pairs in (left, right)]
        total = fma(builder, total, *halves)
    return total


_MULTIPLY_ADD: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    types.uint32: _add_float32,
    types.uint16: _add_bfloat16_native if _HAS_BFLOAT16 else _add_bfloat16,
    types.int16: _add_float16,
}


@intrinsic
def address(_context: Any, array: Any) -> Any:
    """Of the first number of an array, in bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, SIZE)

    return types.int64(array), generate


@intrinsic
def call(_context: Any, target: Any, arguments: Any) -> Any:
    """Call the compiled function at an address, which returns nothing, with a tuple of arguments of its very types."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds = tuple(signature.args[1])
        function = pointer(builder, given[0], context.call_conv.get_function_type(types.none, kinds))
        values = cgutils.unpack_tuple(builder, given[1], len(kinds))
        context.call_conv.call_function(builder, function, types.none, kinds, values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@intrinsic
def prefetch(_context: Any, target: Any) -> Any:
    """Ask for the cache line at an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = pointer(builder, arguments[0], BYTE)
        kind = ir.FunctionType(ir.VoidType(), (line.type, WORD, WORD, WORD))
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, (line, *(ir.Constant(WORD, value) for value in (0, 2, 1))))  # to read, keep, data
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def multiply(
    _context: Any,
    like: Any,
    left: Any,
    left_stride: Any,
    right: Any,
    right_stride: Any,
    num: Any,
    out: Any,
    stride: Any,
) -> Any:
    """out [ROWS, COLUMNS] float32 += left [ROWS, num words] x right [num words, COLUMNS].

    Addresses in bytes, strides between rows in words; words are what the numbers of the array `like` are.
    """
    add = _MULTIPLY_ADD[like.dtype]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, a, a_stride, b, b_stride, size, c, c_stride = arguments

        def at(base: Any, row: Any, row_stride: Any, offset: Any = 0) -> Any:
            words = builder.add(builder.mul(row, row_stride), constant(offset))
            return builder.add(base, builder.mul(words, constant(4)))

        cells = [(row, column) for row in range(ROWS) for column in range(0, COLUMNS, LANES)]
        targets = {cell: at(c, constant(cell[0]), c_stride, cell[1]) for cell in cells}
        totals = {cell: cgutils.alloca_once_value(builder, load(builder, targets[cell], FLOATS)) for cell in cells}
        with cgutils.for_range(builder, size, intp=SIZE) as loop:
            columns = {
                column: load(builder, at(b, loop.index, b_stride, column), WORDS) for column in range(0, COLUMNS, LANES)
            }
            for row in range(ROWS):
                address = builder.add(at(a, constant(row), a_stride), builder.mul(loop.index, constant(4)))
                word = splat(builder, load(builder, address, WORD), WORDS)
                for column, words in columns.items():
                    total = totals[row, column]
                    builder.store(add(builder, builder.load(total), word, words), total)
        for cell in cells:
            store(builder, builder.load(totals[cell]), targets[cell])
        return context.get_dummy_value()

    size = types.int64
    return types.void(like, size, size, size, size, size, size, size), generate


@intrinsic
def transpose(_context: Any, base: Any, rows: Any, row_bytes: Any, out: Any, stride: Any) -> Any:
    """out [LANES words, LANES] = the LANES rows of words at `base + rows[i] * row_bytes`, turned.

    `base` and `out` are addresses, `rows` the address of LANES int64, `stride` of `out` in words.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, ids, size, target, target_stride = arguments
        lines = []
        for lane in range(LANES):
            row = load(builder, builder.add(ids, constant(8 * lane)), SIZE)
            lines.append(load(builder, builder.add(source, builder.mul(row, size)), WORDS))
        for half in (8, 4, 2, 1):  # swap the off-diagonal quarters of ever smaller squares
            lower = [lane if lane & half == 0 else LANES + lane - half for lane in range(LANES)]
            upper = [lane + half if lane & half == 0 else LANES + lane for lane in range(LANES)]
            for line in range(LANES):
                if line & half == 0:
                    pair = lines[line], lines[line + half]
                    lines[line], lines[line + half] = (shuffle(builder, *pair, lanes) for lanes in (lower, upper))
        for line, words in enumerate(lines):
            offset = builder.mul(builder.mul(constant(line), target_stride), constant(4))
            store(builder, words, builder.add(target, offset))
        return context.get_dummy_value()

    size = types.int64
    return types.void(size, size, size, size, size), generate


@intrinsic
def interleave(_context: Any, first: Any, second: Any, out: Any) -> Any:
    """out [2 LANES] words = pairs of the 2 LANES 16-bit numbers at `first` and those at `second`; addresses."""
    numbers = ir.VectorType(ir.IntType(16), 2 * LANES)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, high = (load(builder, target, numbers) for target in arguments[:2])
        for half in range(2):
            lanes = [half * LANES + lane // 2 + lane % 2 * 2 * LANES for lane in range(2 * LANES)]
            target = builder.add(arguments[2], constant(half * 4 * LANES))
            store(builder, shuffle(builder, low, high, lanes), target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def widen(_context: Any, bits: Any) -> Any:
    """A stored number as float32."""
    kind = FLOAT_TYPES[bits]

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = builder.bitcast(arguments[0], kind)
        return number if kind is FLOAT else builder.fpext(number, FLOAT)

    return types.float32(bits), generate


@intrinsic
def narrow(_context: Any, like: Any, number: Any) -> Any:
    """The bits of a float32 as the array `like` stores numbers, rounded to the nearest."""
    kind = FLOAT_TYPES[like.dtype]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rounded = arguments[1] if kind is FLOAT else builder.fptrunc(arguments[1], kind)
        return builder.bitcast(rounded, context.get_value_type(like.dtype))

    return like.dtype(like, types.float32), generate


@intrinsic
def as_word(_context: Any, number: Any) -> Any:
    """The bits of a float32 as int32; of numbers above 0 they are in the same order. `widen` turns a uint32 back."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], WORD)

    return types.int32(types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """2 ** exponent as float32, for an int32 exponent from -126 to 127, by its bits."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(arguments[0], ir.Constant(WORD, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(WORD, 23)), FLOAT)

    return types.float32(types.int32), generate


@njit(fastmath={"contract"}, inline="always")
def exponential(x: Any) -> Any:
    """exp(x) for x <= 0 in float32, to 2 units in the last place; loops over it become vectors.

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
