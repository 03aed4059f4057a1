"""Vector instructions of the online softmax, for `attention.py`: maxima of scores, and exponentials to the base 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from batchgen_kernels.cpu.llvm import (
    BITS_TO_FLOAT,
    FLOAT32,
    FLOAT32S,
    INT32,
    INT32S,
    LANES,
    fma,
    int64,
    load,
    splat,
    store,
)

# Coefficients of 2 ** r for |r| <= 1/2, from r ** 6 down: the series of exp(r log 2), whose remainder is below 1.3e-7
_COEFFICIENTS = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_TO_INTEGER = 1.5 * 2.0**23  # so large that adding it rounds a float32 to an integer, in the last bits of the sum


def _vectors_up_to(builder: Any, array: Any, size: int, limit: Any) -> Iterator[Any]:
    """Yield the vectors of `size` float32 at the address `array`, with -infinity from number `limit` on."""
    last = splat(builder, builder.trunc(limit, INT32), INT32S)
    masked = ir.Constant(FLOAT32S, [float("-inf")] * LANES)
    for first in range(0, size, LANES):
        is_seen = builder.icmp_signed("<", ir.Constant(INT32S, list(range(first, first + LANES))), last)
        yield builder.select(is_seen, load(builder, builder.add(array, int64(4 * first)), FLOAT32S), masked)


@intrinsic(prefer_literal=True)
def maximum(_context: Any, numbers: Any, size: Any, limit: Any) -> Any:
    """Return the maximum of the first `limit` of `size` (a literal) float32 at the address `numbers`.

    NaN may be ignored.
    """

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        largest = ir.Constant(FLOAT32S, [float("-inf")] * LANES)
        for number in _vectors_up_to(builder, arguments[0], size.literal_value, arguments[2]):
            largest = builder.select(builder.fcmp_ordered(">", number, largest), number, largest)
        name = f"llvm.vector.reduce.fmax.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOAT32, (FLOAT32S,)), name)
        return builder.call(reduce, (largest,), fastmath=("nnan",))

    return types.float32(types.int64, size, types.int64), generate


def _powers(builder: Any, x: Any) -> Any:
    """Return 2 ** x for x <= 0 in float32 vectors, 0 below -126; NaN stays NaN."""

    def floats(value: float) -> Any:
        return ir.Constant(FLOAT32S, [value] * LANES)

    is_tiny = builder.fcmp_ordered("<", x, floats(-126.0))
    # Without flags an instruction gets those of its function, by which these sums could be reordered.
    shifted = builder.fadd(x, floats(_TO_INTEGER), flags=("contract",))
    whole = builder.fsub(shifted, floats(_TO_INTEGER), flags=("contract",))
    r = builder.fsub(x, whole, flags=("contract",))
    power = floats(_COEFFICIENTS[0])
    for factor in _COEFFICIENTS[1:]:
        power = fma(builder, floats(factor), power, r)
    exponent = builder.shl(builder.bitcast(shifted, INT32S), ir.Constant(INT32S, [23] * LANES))
    exponent = builder.add(exponent, ir.Constant(INT32S, [127 << 23] * LANES))
    return builder.select(is_tiny, floats(0.0), builder.fmul(power, builder.bitcast(exponent, FLOAT32S)))


@intrinsic(prefer_literal=True)
def exponentials(
    _context: Any, prototype: Any, numbers: Any, size: Any, limit: Any, scale: Any, offset: Any, out: Any
) -> Any:
    """Write 2 ** (numbers * scale - offset) of the first `limit` numbers, then 0, to out [size]; return their sum.

    The dtype of `out` is that of the array `prototype`. `numbers` and `out` are addresses, `size` is a literal, and no
    exponent is above 0.
    """
    kind = ir.VectorType(BITS_TO_FLOAT[prototype.dtype], LANES)
    item = 4 if kind.element is FLOAT32 else 2

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        factor, shift = (splat(builder, number, FLOAT32S) for number in (arguments[4], builder.fneg(arguments[5])))
        total = ir.Constant(FLOAT32S, [0.0] * LANES)
        for first, number in enumerate(_vectors_up_to(builder, arguments[1], size.literal_value, arguments[3])):
            power = _powers(builder, fma(builder, shift, number, factor))
            total = builder.fadd(total, power)
            stored = power if item == 4 else builder.fptrunc(power, kind)
            store(builder, stored, builder.add(arguments[6], int64(item * LANES * first)))
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOAT32, (FLOAT32, FLOAT32S)), name)
        return builder.call(reduce, (ir.Constant(FLOAT32, -0.0), total), fastmath=("reassoc",))

    address, number = types.int64, types.float32
    return number(prototype, address, size, address, number, number, address), generate


@intrinsic
def exp2(_context: Any, x: Any) -> Any:
    """Return 2 ** x for x <= 0."""

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_powers(builder, splat(builder, arguments[0], FLOAT32S)), ir.Constant(INT32, 0))

    return types.float32(types.float32), generate
