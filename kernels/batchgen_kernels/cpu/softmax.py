"""The online softmax in whole vectors, for the kernel over pages: greatest scores, and exponentials to the base 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from batchgen_kernels.cpu.llvm import (
    FLOAT,
    FLOAT_TYPES,
    FLOATS,
    LANES,
    WORD,
    WORDS,
    constant,
    fma,
    load,
    splat,
    store,
)

# of 2 ** r for |r| <= 1/2, from r ** 6 down: the series of exp(r log 2); the rest of it is below 1.3e-7
_POWERS = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_TO_INTEGER = 1.5 * 2.0**23  # a float32 this large has no fraction: adding it rounds, its last bits are the integer


def _first(builder: Any, array: Any, size: int, limit: Any) -> Iterator[Any]:
    """The vectors of `size` float32 at the address `array`, -infinity from number `limit` on."""
    last = splat(builder, builder.trunc(limit, WORD), WORDS)
    nothing = ir.Constant(FLOATS, [float("-inf")] * LANES)
    for first in range(0, size, LANES):
        is_seen = builder.icmp_signed("<", ir.Constant(WORDS, list(range(first, first + LANES))), last)
        yield builder.select(is_seen, load(builder, builder.add(array, constant(4 * first)), FLOATS), nothing)


@intrinsic(prefer_literal=True)
def greatest(_context: Any, numbers: Any, size: Any, limit: Any) -> Any:
    """Of the first `limit` of `size` (a literal) float32 at the address `numbers`.

    One that is not a number may be passed over.
    """

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        most = ir.Constant(FLOATS, [float("-inf")] * LANES)
        for number in _first(builder, arguments[0], size.literal_value, arguments[2]):
            most = builder.select(builder.fcmp_ordered(">", number, most), number, most)
        name = f"llvm.vector.reduce.fmax.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOAT, (FLOATS,)), name)
        return builder.call(reduce, (most,), fastmath=("nnan",))

    return types.float32(types.int64, size, types.int64), generate


def _powers(builder: Any, x: Any) -> Any:
    """2 ** x for x <= 0 in float32 vectors, 0 below -126; not a number stays so."""

    def floats(value: float) -> Any:
        return ir.Constant(FLOATS, [value] * LANES)

    least = builder.fcmp_ordered("<", x, floats(-126.0))
    # An instruction without flags would get the function's, and these sums are not to be reordered.
    shifted = builder.fadd(x, floats(_TO_INTEGER), flags=("contract",))
    whole = builder.fsub(shifted, floats(_TO_INTEGER), flags=("contract",))
    r = builder.fsub(x, whole, flags=("contract",))
    power = floats(_POWERS[0])
    for factor in _POWERS[1:]:
        power = fma(builder, floats(factor), power, r)
    exponent = builder.shl(builder.bitcast(shifted, WORDS), ir.Constant(WORDS, [23] * LANES))
    exponent = builder.add(exponent, ir.Constant(WORDS, [127 << 23] * LANES))
    return builder.select(least, floats(0.0), builder.fmul(power, builder.bitcast(exponent, FLOATS)))


@intrinsic(prefer_literal=True)
def exponentials(_context: Any, like: Any, numbers: Any, size: Any, limit: Any, scale: Any, most: Any, out: Any) -> Any:
    """out [size] = 2 ** (numbers * scale - most) of the first `limit` numbers and 0, as the array `like` stores them.

    Returns their sum. `numbers` and `out` are addresses, `size` a literal, no exponent above 0.
    """
    kind = ir.VectorType(FLOAT_TYPES[like.dtype], LANES)
    item = 4 if kind.element is FLOAT else 2

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        factor, offset = (splat(builder, number, FLOATS) for number in (arguments[4], builder.fneg(arguments[5])))
        total = ir.Constant(FLOATS, [0.0] * LANES)
        for first, number in enumerate(_first(builder, arguments[1], size.literal_value, arguments[3])):
            power = _powers(builder, fma(builder, offset, number, factor))
            total = builder.fadd(total, power)
            stored = power if item == 4 else builder.fptrunc(power, kind)
            store(builder, stored, builder.add(arguments[6], constant(item * LANES * first)))
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOAT, (FLOAT, FLOATS)), name)
        return builder.call(reduce, (ir.Constant(FLOAT, -0.0), total), fastmath=("reassoc",))

    address, number = types.int64, types.float32
    return number(like, address, size, address, number, number, address), generate


@intrinsic
def exp2(_context: Any, x: Any) -> Any:
    """2 ** x for x <= 0."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_powers(builder, splat(builder, arguments[0], FLOATS)), ir.Constant(WORD, 0))

    return types.float32(types.float32), generate
