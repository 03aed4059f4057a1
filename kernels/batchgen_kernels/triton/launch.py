"""Launch parameters from the committed table; nothing is tuned while a job runs.

The rows of `launch_table.json` are chosen manually; `measured` is null until a GPU has timed a row. Keys that a row
leaves out match anything; the row that names most of a launch's keys is used, so a measured row precedes general ones.
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
INTERPRETER = "interpreter"  # the arch of Triton's interpreter, with tiles so small that small shapes need several


class LaunchKey(NamedTuple):
    """The properties of a layer and device by which a launch is chosen."""

    arch: str  # sm_90, or INTERPRETER
    head_size: int  # the larger one of K and V
    heads_per_kv: int
    dtype: str
    block_size: int


class Launch(NamedTuple):
    """Parameters of one launch of the attention kernel."""

    block_m: int  # rows of a tile: queries times heads per KV head
    block_n: int  # tokens in one iteration of its loop
    num_warps: int
    num_stages: int


class DeviceConstants(NamedTuple):
    """What is known of a device for deciding about sharing and splitting."""

    bandwidth: float  # bytes of K and V that the decode kernel reads a second
    shared_overhead: float  # seconds a layer for the launches of the shared path, independent of their size
    programs_per_sm: int  # number at which the decode kernel is fastest
    min_split: int  # tokens of the shortest range worth a partial result


def arch_of(device: torch.device) -> str:
    """Return the compute capability of a GPU, such as sm_90, or INTERPRETER."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    assert is_interpreted(), f"the Triton backend runs on a GPU or in the interpreter, not on {device}"
    return INTERPRETER


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter: on the CPU, slowly, in float32 or float16."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def launches(key: LaunchKey) -> dict[str, Launch]:
    """Return the launch of each regime; its tile holds at least the heads of one query."""
    return {regime: _launch(key, regime) for regime in REGIMES}


@cache
def constants(arch: str) -> DeviceConstants:
    """Return the constants of the arch, or of the newest older one in the table."""
    devices: dict[str, dict[str, Any]] = _table()["devices"]
    nearest = max((name for name in devices if _generation(name) <= _generation(arch)), key=_generation)
    return DeviceConstants(**{name: devices[nearest][name] for name in DeviceConstants._fields})


def _launch(key: LaunchKey, regime: str) -> Launch:
    matching = [row for row in table_rows() if _matches(row, key, regime)]
    if not matching:
        raise LookupError(f"{TABLE_PATH.name} has no {regime} launch for {key}")
    best = max(matching, key=lambda row: (_generation(row["arch"]), len(row), -row["head_size"]))
    launch = Launch(*(best[name] for name in Launch._fields))
    return launch._replace(block_m=max(launch.block_m, 1 << (key.heads_per_kv - 1).bit_length()))


def _matches(row: dict[str, Any], key: LaunchKey, regime: str) -> bool:
    """Every row names a regime, the arch from which it applies and the head size up to which it applies."""
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
    """Return the rows of the table as they are in the file."""
    rows: list[dict[str, Any]] = _table()["launches"]
    return rows


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    return table
