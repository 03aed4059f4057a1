"""What the intrinsics of this folder say in LLVM's language: types of vectors, and loads, stores and sums of them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

LANES = 16

BYTE = ir.IntType(8)
SIZE = ir.IntType(64)
WORD = ir.IntType(32)
FLOAT = ir.FloatType()
WORDS = ir.VectorType(WORD, LANES)
FLOATS = ir.VectorType(FLOAT, LANES)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


# what the bits of each integer type are
FLOAT_TYPES = {types.uint32: FLOAT, types.uint16: BFloat(), types.int16: ir.HalfType()}


def splat(builder: Any, value: Any, vector: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(WORD, 0))
    return shuffle(builder, first, first, [0] * LANES)


def shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(WORD, len(lanes)), lanes))


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(pointer(builder, address, kind), align=4)


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=4)


def fma(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def constant(value: int) -> Any:
    return ir.Constant(SIZE, value)
