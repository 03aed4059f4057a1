"""Launch parameters from the committed table; nothing is tuned while a job runs.

The rows of `launch_table.json` are chosen by hand; `measured` is null where no GPU has timed one. A row may leave keys
out, which then match anything; the row that names most of a launch's keys wins, so one measured row stands before the
broad ones.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

TABLE_PATH = Path(__file__).with_name("launch_table.json")
REGIMES = ("decode", "shared", "prefill")
INTERPRETER = "interpreter"  # the arch of Triton's interpreter: small tiles, so that small shapes have several


class LaunchKey(NamedTuple):
    """What a launch is chosen by."""

    arch: str  # sm_90, or INTERPRETER
    head_size: int  # the larger of K's and V's
    heads_per_kv: int
    dtype: str
    block_size: int


class Launch(NamedTuple):
    """Parameters of one launch of the attention kernel."""

    block_m: int  # rows of a tile: queries times heads per KV head
    block_n: int  # tokens a step of its loop
    num_warps: int
    num_stages: int


class DeviceConstants(NamedTuple):
    """What the gate and the split need to know of a device."""

    bandwidth: float  # bytes a second of K and V reads, as the decode kernel reaches it
    shared_overhead: float  # seconds a layer: the launches of the shared path, whatever their size
    programs_per_sm: int  # at which the decode kernel is fastest
    min_split: int  # tokens of the shortest piece worth a partial


def arch_of(device: torch.device) -> str:
    """sm_90 and the like."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    assert is_interpreted(), f"the Triton backend runs on a GPU or in the interpreter, not on {device}"
    return INTERPRETER


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: on the CPU, slowly, in float32 or float16."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def launches(key: LaunchKey) -> dict[str, Launch]:
    """The launch of each regime; its tile holds at least the heads of one query."""
    return {regime: _launch(key, regime) for regime in REGIMES}


@cache
def constants(arch: str) -> DeviceConstants:
    """Those of the arch, or of the newest older one in the table."""
    known: dict[str, dict[str, Any]] = _table()["devices"]
    nearest = max((name for name in known if _generation(name) <= _generation(arch)), key=_generation)
    return DeviceConstants(**{name: known[nearest][name] for name in DeviceConstants._fields})


def _launch(key: LaunchKey, regime: str) -> Launch:
    matching = [row for row in table_rows() if _matches(row, key, regime)]
    if not matching:
        raise LookupError(f"{TABLE_PATH.name} has no {regime} launch for {key}")
    best = max(matching, key=lambda row: (_generation(row["arch"]), len(row), -row["head_size"]))
    launch = Launch(*(best[name] for name in Launch._fields))
    return launch._replace(block_m=max(launch.block_m, 1 << (key.heads_per_kv - 1).bit_length()))


def _matches(row: dict[str, Any], key: LaunchKey, regime: str) -> bool:
    """Every row names a regime, the arch from which it holds and the head size up to which it does."""
    exact = key._asdict()
    del exact["arch"], exact["head_size"]
    return (
        row["regime"] == regime
        and (row["arch"] == INTERPRETER) == (key.arch == INTERPRETER)
        and _generation(row["arch"]) <= _generation(key.arch)
        and key.head_size <= row["head_size"]
        and all(row.get(name, value) == value for name, value in exact.items())
    )


def _generation(arch: str) -> int:
    return 0 if arch == INTERPRETER else int(arch.removeprefix("sm_"))


def table_rows() -> list[dict[str, Any]]:
    """The rows of the table as they are in its file."""
    rows: list[dict[str, Any]] = _table()["launches"]
    return rows


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    return table
