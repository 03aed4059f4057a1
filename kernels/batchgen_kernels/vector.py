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

LANES = 16
ROWS = 4  # of the left matrix that `multiply` takes at once
COLUMNS = 2 * LANES  # of the right matrix


_HAS_BFLOAT16 = bool(llvm.get_host_cpu_features().get("avx512bf16"))

_BYTE = ir.IntType(8)
_SIZE = ir.IntType(64)
_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()
_WORDS = ir.VectorType(_WORD, LANES)
_FLOATS = ir.VectorType(_FLOAT, LANES)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_BFLOATS = ir.VectorType(_BFloat(), 2 * LANES)
# what the bits of each integer type are
_FLOAT_TYPES = {types.uint32: _FLOAT, types.uint16: _BFloat(), types.int16: ir.HalfType()}
_HALVES = ir.VectorType(ir.HalfType(), 2 * LANES)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_WORD, 0))
    return _shuffle(builder, first, first, [0] * LANES)


def _shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes))


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(_pointer(builder, address, kind), align=4)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, _pointer(builder, address, value.type), align=4)


def _fma(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def _add_float32(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return _fma(builder, total, builder.bitcast(left, _FLOATS), builder.bitcast(right, _FLOATS))


def _add_bfloat16_native(builder: Any, total: Any, left: Any, right: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, (_FLOATS, _BFLOATS, _BFLOATS))
    dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(dot, (total, builder.bitcast(left, _BFLOATS), builder.bitcast(right, _BFLOATS)))


def _add_bfloat16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """A bfloat16 is the upper half of the float32 of the same value."""
    sixteen, upper = (_splat(builder, ir.Constant(_WORD, value), _WORDS) for value in (16, 0xFFFF0000))
    for half, by in ((builder.shl, sixteen), (builder.and_, upper)):
        total = _add_float32(builder, total, half(left, by), half(right, by))
    return total


def _add_float16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    left, right = (builder.bitcast(words, _HALVES) for words in (left, right))
    for parity in (0, 1):
        lanes = list(range(parity, 2 * LANES, 2))
        halves = [builder.fpext(_shuffle(builder, pairs, pairs, lanes), _FLOATS) for pairs in (left, right)]
        total = _fma(builder, total, *halves)
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
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, _SIZE)

    return types.int64(array), generate


@intrinsic
def call(_context: Any, place: Any, arguments: Any) -> Any:
    """Call the compiled function at an address, which returns nothing, with a tuple of arguments of its very types."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds = tuple(signature.args[1])
        function = _pointer(builder, given[0], context.call_conv.get_function_type(types.none, kinds))
        values = cgutils.unpack_tuple(builder, given[1], len(kinds))
        context.call_conv.call_function(builder, function, types.none, kinds, values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@intrinsic
def prefetch(_context: Any, place: Any) -> Any:
    """Ask for the cache line at an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = _pointer(builder, arguments[0], _BYTE)
        kind = ir.FunctionType(ir.VoidType(), (line.type, _WORD, _WORD, _WORD))
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, (line, *(ir.Constant(_WORD, value) for value in (0, 3, 1))))  # to read, keep, data
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic(prefer_literal=True)
def greatest(_context: Any, array: Any, size: Any) -> Any:
    """Of `size` (a literal) float32 at the address `array`; one that is not a number may be passed over."""
    numbers = ir.VectorType(_FLOAT, size.literal_value)

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        name = f"llvm.vector.reduce.fmax.v{numbers.count}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOAT, (numbers,)), name)
        return builder.call(reduce, (_load(builder, arguments[0], numbers),), fastmath=("nnan",))

    return types.float32(types.int64, size), generate


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
            words = builder.add(builder.mul(row, row_stride), _constant(offset))
            return builder.add(base, builder.mul(words, _constant(4)))

        cells = [(row, column) for row in range(ROWS) for column in range(0, COLUMNS, LANES)]
        places = {cell: at(c, _constant(cell[0]), c_stride, cell[1]) for cell in cells}
        totals = {cell: cgutils.alloca_once_value(builder, _load(builder, places[cell], _FLOATS)) for cell in cells}
        with cgutils.for_range(builder, size, intp=_SIZE) as loop:
            columns = {
                column: _load(builder, at(b, loop.index, b_stride, column), _WORDS)
                for column in range(0, COLUMNS, LANES)
            }
            for row in range(ROWS):
                address = builder.add(at(a, _constant(row), a_stride), builder.mul(loop.index, _constant(4)))
                word = _splat(builder, _load(builder, address, _WORD), _WORDS)
                for column, words in columns.items():
                    total = totals[row, column]
                    builder.store(add(builder, builder.load(total), word, words), total)
        for cell in cells:
            _store(builder, builder.load(totals[cell]), places[cell])
        return context.get_dummy_value()

    size = types.int64
    return types.void(like, size, size, size, size, size, size, size), generate


def _constant(value: int) -> Any:
    return ir.Constant(_SIZE, value)


@intrinsic
def transpose(_context: Any, base: Any, rows: Any, row_bytes: Any, out: Any, stride: Any) -> Any:
    """out [LANES words, LANES] = the LANES rows of words at `base + rows[i] * row_bytes`, turned.

    `base` and `out` are addresses, `rows` the address of LANES int64, `stride` of `out` in words.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, ids, size, target, target_stride = arguments
        lines = []
        for lane in range(LANES):
            row = _load(builder, builder.add(ids, _constant(8 * lane)), _SIZE)
            lines.append(_load(builder, builder.add(source, builder.mul(row, size)), _WORDS))
        for half in (8, 4, 2, 1):  # swap the off-diagonal quarters of ever smaller squares
            lower = [lane if lane & half == 0 else LANES + lane - half for lane in range(LANES)]
            upper = [lane + half if lane & half == 0 else LANES + lane for lane in range(LANES)]
            for line in range(LANES):
                if line & half == 0:
                    pair = lines[line], lines[line + half]
                    lines[line], lines[line + half] = (_shuffle(builder, *pair, lanes) for lanes in (lower, upper))
        for line, words in enumerate(lines):
            offset = builder.mul(builder.mul(_constant(line), target_stride), _constant(4))
            _store(builder, words, builder.add(target, offset))
        return context.get_dummy_value()

    size = types.int64
    return types.void(size, size, size, size, size), generate


@intrinsic
def widen(_context: Any, bits: Any) -> Any:
    """A stored number as float32."""
    kind = _FLOAT_TYPES[bits]

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = builder.bitcast(arguments[0], kind)
        return number if kind is _FLOAT else builder.fpext(number, _FLOAT)

    return types.float32(bits), generate


@intrinsic
def narrow(_context: Any, like: Any, number: Any) -> Any:
    """The bits of a float32 as the array `like` stores numbers, rounded to the nearest."""
    kind = _FLOAT_TYPES[like.dtype]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rounded = arguments[1] if kind is _FLOAT else builder.fptrunc(arguments[1], kind)
        return builder.bitcast(rounded, context.get_value_type(like.dtype))

    return like.dtype(like, types.float32), generate


@intrinsic
def as_word(_context: Any, number: Any) -> Any:
    """The bits of a float32 as int32; of numbers above 0 they are in the same order. `widen` turns a uint32 back."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.int32(types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """2 ** exponent as float32, for an int32 exponent from -126 to 127, by its bits."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(arguments[0], ir.Constant(_WORD, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(_WORD, 23)), _FLOAT)

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
