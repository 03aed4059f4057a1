"""Time launch parameters of the attention kernel on this machine's GPU and write the best into the launch table.

    python -m scripts.gpu.tune_kernels --head-size 128 --heads-per-kv 4             one kind of layer, all regimes
    python -m scripts.gpu.tune_kernels --head-size 64 --heads-per-kv 3 --dry-run    no GPU: each regime runs once

A written row names every key of its launch, so it takes precedence over the broad rows that were chosen without
measuring. The constants of the device (bandwidth, overhead of the shared path) do not change.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from datetime import date
from typing import Any

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import click
import torch
import triton
from triton.testing import do_bench

from batchgen_kernels import AttentionOptions, LayerCache
from batchgen_kernels.triton.attention import Parts, QueryTables, attend_items
from batchgen_kernels.triton.backend import DeviceWork, LayerShape, tiling_of
from batchgen_kernels.triton.launch import REGIMES, TABLE_PATH, Launch, LaunchKey, arch_of, table_rows
from batchgen_kernels.triton.work import plan_work
from scripts.gpu.kernel_times import paged_step

_NUM_KV_HEADS = 8
# regime -> rows, queries of a row, tokens before them, shared tokens
_WORK = {"decode": (256, 1, 1024, 0), "shared": (256, 1, 2048, 2048), "prefill": (4, 1024, 1024, 0)}
_DRY_WORK = {"decode": (3, 1, 40, 0), "shared": (3, 1, 32, 32), "prefill": (1, 20, 0, 0)}
_BLOCK_M = {"decode": (16,), "shared": (32, 64, 128), "prefill": (64, 128)}


@click.command()
@click.option("--head-size", default=128, show_default=True)
@click.option("--heads-per-kv", default=4, show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--block-size", default=16, show_default=True)
@click.option("--dry-run", is_flag=True, help="in Triton's interpreter: float32, tiny shapes, nothing timed or written")
def main(head_size: int, heads_per_kv: int, dtype: str, block_size: int, dry_run: bool) -> None:
    """Tune one kind of layer; see the top of this file."""
    device = torch.device("cpu" if dry_run else "cuda")
    key = LaunchKey(arch_of(device), head_size, heads_per_kv, "float32" if dry_run else dtype, block_size)
    for regime in REGIMES:
        layer = Layer(key, regime, device, (_DRY_WORK if dry_run else _WORK)[regime])
        if dry_run:
            layer.run(Launch(32, 32, 1, 1))
            click.echo(f"{regime}: ran once in the interpreter")
            continue
        best, milliseconds = fastest(layer, regime)
        click.echo(f"{regime}: {best} {milliseconds:.3f} ms")
        write(key, regime, best, {**conditions(device), "milliseconds": round(milliseconds, 4)})


def conditions(device: torch.device) -> dict[str, str]:
    """Return the date, the GPU and the versions of a measurement."""
    gpu = torch.cuda.get_device_name(device)
    return {"date": date.today().isoformat(), "gpu": gpu, "torch": torch.__version__, "triton": triton.__version__}


class Layer:
    """The attention of one regime over random K and V."""

    def __init__(self, key: LaunchKey, regime: str, device: torch.device, work: tuple[int, int, int, int]) -> None:
        self._regime = regime
        rows, queries, before, shared = work
        size, num_shared = key.block_size, shared // key.block_size
        self._step = paged_step(rows, queries, before, block_size=size, device=device, num_shared_blocks=num_shared)
        dtype, num_heads = getattr(torch, key.dtype), _NUM_KV_HEADS * key.heads_per_kv
        num_blocks = int(self._step.block_tables.max()) + 1
        shape = (num_blocks, _NUM_KV_HEADS, key.block_size, key.head_size)
        self._cache = LayerCache(*(torch.randn(shape, dtype=dtype, device=device) for _ in range(2)))
        self._shape = LayerShape(num_heads, _NUM_KV_HEADS, key.head_size, key.head_size, dtype, key.block_size)
        num_tokens = self._step.query_starts[-1]
        self._query = torch.randn(num_tokens, num_heads, key.head_size, dtype=dtype, device=device)

    def run(self, launch: Launch) -> None:
        """Run the attention, with its work split for this launch as in a step."""
        items, query_tables, parts, output = self._arguments(launch)
        attend_items(self._query, self._cache, items, query_tables, parts, output, AttentionOptions(0.1), launch)

    def milliseconds(self, launch: Launch) -> float:
        """Return the median time of a launch; infinite if the device lacks the resources."""
        items, query_tables, parts, output = self._arguments(launch)
        options = AttentionOptions(0.1)
        try:
            return float(
                do_bench(
                    lambda: attend_items(self._query, self._cache, items, query_tables, parts, output, options, launch),
                    return_mode="median",
                )
            )
        except triton.runtime.errors.OutOfResources:
            return math.inf

    def _arguments(self, launch: Launch) -> tuple[torch.Tensor, QueryTables, Parts, torch.Tensor]:
        regimes = dict.fromkeys(REGIMES, launch)
        plan = plan_work(self._step, tiling_of(self._shape, regimes, self._query.device, min_saved_bytes=-math.inf))
        work = DeviceWork.allocate(plan.size, self._query.device)
        work.write(plan)
        size = (plan.size.partials, *self._query.shape[1:])
        parts = Parts(*(self._query.new_empty(shape, dtype=torch.float32) for shape in (size, size[:2])))
        query_tables = QueryTables(work.positions, work.partial_starts, self._step.block_tables)
        return work.items[self._regime], query_tables, parts, torch.empty_like(self._query)


def candidates(regime: str) -> Iterator[Launch]:
    """Yield every combination of tile, warps and stages that is tried."""
    yield from map(Launch._make, itertools.product(_BLOCK_M[regime], (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4)))


def fastest(layer: Layer, regime: str) -> tuple[Launch, float]:
    """Return the best candidate and its milliseconds."""
    times = {launch: layer.milliseconds(launch) for launch in candidates(regime)}
    best = min(times, key=lambda launch: times[launch])
    return best, times[best]


def write(key: LaunchKey, regime: str, launch: Launch, measured: dict[str, Any]) -> None:
    """Replace the table's row with exactly these keys, or add one."""
    table = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    named = {"regime": regime, **key._asdict()}
    rows = [row for row in table_rows() if {name: row.get(name) for name in named} != named]
    rows.append({**named, **launch._asdict(), "measured": measured})
    devices = ",\n".join(f"  {json.dumps(arch)}: {json.dumps(known)}" for arch, known in table["devices"].items())
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    TABLE_PATH.write_text(f'{{\n "devices": {{\n{devices}\n }},\n "launches": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
