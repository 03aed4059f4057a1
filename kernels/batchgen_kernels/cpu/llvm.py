"""LLVM IR that the intrinsics of this folder share: vector types, and loads, stores and fused multiply-adds of them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

LANES = 16  # of a vector of 32-bit numbers

INT8 = ir.IntType(8)
INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
FLOAT32 = ir.FloatType()
INT32S = ir.VectorType(INT32, LANES)
FLOAT32S = ir.VectorType(FLOAT32, LANES)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


# the integer type by which numba knows a number -> its floating-point type
BITS_TO_FLOAT = {types.uint32: FLOAT32, types.uint16: BFloat(), types.int16: ir.HalfType()}


def splat(builder: Any, value: Any, vector: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(INT32, 0))
    return shuffle(builder, first, first, [0] * LANES)


def shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(INT32, len(lanes)), lanes))


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(pointer(builder, address, kind), align=4)


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=4)


def fma(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def int64(value: int) -> Any:
    return ir.Constant(INT64, value)
