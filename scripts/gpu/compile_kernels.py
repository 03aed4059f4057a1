"""Compile the Triton kernels ahead of time and print the GPU resources that they take. Needs no GPU.

    python -m scripts.gpu.compile_kernels          one row for each kernel and architecture
    python -m scripts.gpu.compile_kernels --all    every row of the launch table, for plain layers and special ones

Registers and spilled bytes (the kernels use the stack for nothing else) are read from the cubin, shared memory from the
compiler. The exit code is 1 if a kernel spills more than --max-spill on an architecture of --strict.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"  # read when a kernel is declared
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # triton 3.9's own default, which it warns about

import click
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from batchgen_kernels.triton.attention import attention_kernel, tile_of
from batchgen_kernels.triton.launch import REGIMES, Launch, LaunchKey, launches, table_rows
from batchgen_kernels.triton.merge import merge_kernel
from batchgen_kernels.triton.sample import sample_kernel, uniform_kernel
from batchgen_kernels.triton.store import store_kernel
from batchgen_kernels.triton.work import ITEM_FIELDS

ARCHS = ("sm_80", "sm_90", "sm_100")
_POINTER = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}
_HEADS_PER_KV, _NUM_KV_HEADS, _BLOCK_SIZE = 4, 8, 16
_ALIGNED_STRIDES = {"query_stride", "head_stride"}
_ALIGNED_STRIDES |= {"key_token_stride", "key_head_stride", "value_token_stride", "value_head_stride"}
_SPECIAL = ("HAS_SOFT_CAP", "HAS_WINDOW", "HAS_SINKS")


@dataclass(frozen=True)
class Build:
    """One kernel with the arguments of one launch."""

    label: str
    arch: str
    kernel: Any
    types: Mapping[str, str]  # of the arguments that are not constants
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int


class Resources(NamedTuple):
    """What a compiled kernel takes of a GPU."""

    registers: int
    spilled: int  # bytes of a thread
    shared: int  # bytes of a thread block


@click.command()
@click.option("--all", "whole_table", is_flag=True, help="every row of the launch table")
@click.option("--arch", "archs", multiple=True, default=ARCHS, show_default=True)
@click.option("--max-spill", default=0, show_default=True, help="bytes that a thread may spill")
@click.option("--strict", multiple=True, default=["sm_90"], show_default=True, help="where --max-spill holds")
def main(whole_table: bool, archs: tuple[str, ...], max_spill: int, strict: tuple[str, ...]) -> None:
    """Compile and print a table; see the top of this file."""
    click.echo(f"triton {triton.__version__}")
    click.echo(f"{'kernel':44} {'arch':7} {'registers':>9} {'spilled':>8} {'shared':>8} {'seconds':>8}")
    failed = 0
    for build in builds(archs, whole_table):
        start = time.monotonic()
        used = compile_kernel(build)
        is_bad = build.arch in strict and used.spilled > max_spill
        failed += is_bad
        click.echo(
            f"{build.label:44} {build.arch:7} {used.registers:9} {used.spilled:8} {used.shared:8} "
            f"{time.monotonic() - start:8.1f}{'  SPILLS' if is_bad else ''}"
        )
    if failed:
        sys.exit(f"{failed} kernels spill more than {max_spill} bytes a thread on {', '.join(strict)}")


def builds(archs: tuple[str, ...], whole_table: bool) -> Iterator[Build]:
    """Yield what is compiled, architecture by architecture."""
    for arch in archs:
        yield from simple_builds(arch)
        keys = table_keys(arch) if whole_table else [LaunchKey(arch, 128, _HEADS_PER_KV, "bfloat16", _BLOCK_SIZE)]
        for key in keys:
            for regime in REGIMES:
                for special in (False, True) if whole_table else (True,):
                    yield attention_build(key, regime, launches(key)[regime], special)


def table_keys(arch: str) -> list[LaunchKey]:
    """Return one key for each set of conditions in the launch table, with the largest head size that it is for."""
    named = {
        (
            row["head_size"],
            row.get("heads_per_kv", _HEADS_PER_KV),
            row.get("dtype", "bfloat16"),
            row.get("block_size", _BLOCK_SIZE),
        )
        for row in table_rows()
        if row["arch"] in ARCHS
    }
    return [LaunchKey(arch, *conditions) for conditions in sorted(named)]


def attention_build(key: LaunchKey, regime: str, launch: Launch, special: bool) -> Build:
    """Build the attention kernel for one row of the table; a special layer has a window, a soft cap and sinks."""
    pointer = _POINTER[key.dtype]
    types = dict.fromkeys(("query_ptr", "key_ptr", "value_ptr", "output_ptr", "sinks_ptr"), pointer)
    types |= dict.fromkeys(("partial_ptr", "lse_ptr"), "*fp32")
    types |= dict.fromkeys(("items_ptr", "positions_ptr", "partial_starts_ptr"), "*i32") | {"tables_ptr": "*i64"}
    types |= dict.fromkeys(("table_stride", "query_stride", "head_stride", "window"), "i32")
    types |= dict.fromkeys(("scale", "soft_cap"), "fp32")
    constants = {
        "HEADS_PER_KV": key.heads_per_kv,
        **dict.fromkeys(("KEY_SIZE", "VALUE_SIZE"), key.head_size),
        **dict.fromkeys(("KEY_TILE", "VALUE_TILE"), tile_of(key.head_size)),
        "BLOCK_SIZE": key.block_size,
        "ITEM_FIELDS": ITEM_FIELDS,
        **dict.fromkeys(_SPECIAL, special),
        "BLOCK_M": launch.block_m,
        "BLOCK_N": launch.block_n,
    }
    tile = f"{launch.block_m}x{launch.block_n} {launch.num_warps}w {launch.num_stages}s"
    label = f"{regime} {key.dtype} {key.head_size} {tile}{' special' if special else ''}"
    return Build(label, key.arch, attention_kernel, types, constants, launch.num_warps, launch.num_stages)


def simple_builds(arch: str) -> Iterator[Build]:
    """Yield the kernels that are not in the launch table."""
    types = dict.fromkeys(("key_ptr", "value_ptr", "key_pool_ptr", "value_pool_ptr"), "*bf16") | {"slots_ptr": "*i64"}
    types |= dict.fromkeys([f"{name}_stride" for name in ("key_token", "key_head", "value_token", "value_head")], "i32")
    sizes = dict.fromkeys(("KEY_SIZE", "KEY_TILE", "VALUE_SIZE", "VALUE_TILE"), 128)
    heads = dict.fromkeys(("NUM_HEADS", "HEADS_TILE"), _NUM_KV_HEADS)
    yield Build("store bfloat16 128", arch, store_kernel, types, {**sizes, **heads, "BLOCK_SIZE": _BLOCK_SIZE}, 4, 1)
    types = {"partial_ptr": "*fp32", "lse_ptr": "*fp32", "output_ptr": "*bf16"}
    types |= {"tokens_ptr": "*i32", "partial_starts_ptr": "*i32"}
    yield Build("merge bfloat16 128", arch, merge_kernel, types, {"VALUE_SIZE": 128, "VALUE_TILE": 128}, 1, 1)
    types = dict.fromkeys(("keys_ptr", "positions_ptr", "samples_ptr", "bits_ptr"), "*i64") | {"count": "i32"}
    yield Build("uniform", arch, uniform_kernel, types, {"TILE": 128}, 4, 1)
    types = dict.fromkeys(("temperatures_ptr", "top_p_ptr", "min_p_ptr", "best_ptr"), "*fp32")
    types |= dict.fromkeys(("top_k_ptr", "bits_ptr", "tokens_ptr"), "*i64") | dict.fromkeys(
        ("vocab", "row_stride"), "i32"
    )
    types |= {"logits_ptr": "*fp32"}
    yield Build("sample filtered", arch, sample_kernel, types, {"IS_FILTERED": True, "TILE": 2048}, 8, 3)


def compile_kernel(build: Build) -> Resources:
    """Compile as a launch would, with pointers and strides that are multiples of 16."""
    names = build.kernel.arg_names
    assert set(names) == {*build.types, *build.constants}, f"{build.label}: the kernel's arguments are {names}"
    signature = {name: build.types.get(name, "constexpr") for name in names}
    is_aligned = {name for name, kind in signature.items() if kind.startswith("*")} | _ALIGNED_STRIDES
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in is_aligned}
    compiled = triton.compile(
        ASTSource(build.kernel, signature, dict(build.constants), aligned),
        target=GPUTarget("cuda", int(build.arch.removeprefix("sm_")), 32),
        options={"num_warps": build.num_warps, "num_stages": build.num_stages},
    )
    registers, stack = resource_usage(compiled.asm["cubin"])
    return Resources(registers, stack, compiled.metadata.shared)


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Return the registers and the stack bytes of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+)", shown)
    return int(found[0]), int(found[1])


if __name__ == "__main__":
    main()
