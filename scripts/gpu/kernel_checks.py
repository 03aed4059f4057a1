"""Checks of the Triton kernels on a device against float32 on the host. A wrong answer is an AssertionError."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from batchgen_kernels import BlockGroup, LayerCache, philox
from batchgen_kernels.contract import write_kv
from batchgen_kernels.triton import TritonBackend
from batchgen_kernels.triton.sample import uniform
from batchgen_kernels.triton.store import store_kv
from scripts.gpu.machine import Machine
from tests.kernels.paged_cases import Case, make_case

GROUPED = [(1, 20), (1, 60), (1, 43), (9, 41), (1, 60), (2, 40), (1, 41), (1, 5)]
# name -> rows of (queries, tokens before them), groups of rows, options of the layer
CASES: dict[str, tuple[list[tuple[int, int]], list[BlockGroup], dict[str, Any]]] = {
    "decode": ([(1, 0), (1, 31), (1, 50)], [], {}),
    "prefill": ([(9, 0), (33, 29)], [], {}),
    "shared": (GROUPED, [BlockGroup(1, 5, 5), BlockGroup(5, 7, 5)], {}),
    "split and merge": ([(1, 300), (1, 3)], [], {}),
    "window and cap": ([(33, 29), (1, 90)], [], {"sliding_window": 33, "soft_cap": 5.0}),
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check_draws(machine: Machine, _: float) -> dict[str, Any]:
    """Check that the device's random draws equal the host's, bit for bit."""
    words = [np.random.default_rng(7).integers(0, 2**bits, 300, dtype=np.uint64) for bits in (64, 32, 20)]
    found = uniform(*(torch.from_numpy(word.view(np.int64)).to(machine.device) for word in words))
    num_wrong = int((found.cpu().numpy() != philox.uniform(*words)).sum())
    assert num_wrong == 0, f"{num_wrong} of 300 draws differ from the host's"
    return {"equal draws": 300}


def check_kernels(machine: Machine, _: float, dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest errors of store and attention in one dtype; all are computed before one fails the step."""
    errors = {name: _attention_error(machine, name, dtype) for name in CASES}
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not wrong, f"errors above {TOLERANCE[dtype]}: {wrong}"
    stored = _store_error(machine, dtype)
    assert stored == 0, f"what is stored differs by {stored}"
    return {f"{name}: largest error": error for name, error in {"store": stored, **errors}.items()}


def _store_error(machine: Machine, dtype: torch.dtype) -> float:
    case = _to(make_case([(1, 33), (20, 0)], machine.scale.heads[0], dtype=dtype), machine.device)
    found, expected = (LayerCache(*(torch.zeros_like(pool) for pool in case.cache)) for _ in range(2))
    store_kv(case.key, case.value, found, case.step.slot_mapping)
    write_kv(case.key, case.value, expected, case.step.slot_mapping)
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def _attention_error(machine: Machine, name: str, dtype: torch.dtype) -> float:
    rows, groups, options = CASES[name]
    errors = []
    for heads in machine.scale.heads:
        case = make_case(rows, heads, groups=groups, dtype=dtype, **options)
        found = _to(case, machine.device).run(TritonBackend(min_saved_bytes=-math.inf))  # always by the shared path
        errors.append(float((found.cpu().float() - case.truth).abs().max()))
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _to(case: Case, device: torch.device) -> Case:
    """Move a case to another device."""
    step = replace(
        case.step,
        slot_mapping=case.step.slot_mapping.to(device),
        block_tables=case.step.block_tables.to(device),
    )
    cache = LayerCache(case.cache.key.to(device), case.cache.value.to(device))
    return replace(case.with_inputs(lambda tensor: tensor.to(device)), step=step, cache=cache)
