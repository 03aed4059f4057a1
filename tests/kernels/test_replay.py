"""One set of buffers serves all decode steps, as a CUDA graph requires."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from batchgen_kernels import BlockGroup, ReferenceBackend, ReplayBackend
from batchgen_kernels.triton import Prepared, TritonBackend
from tests.kernels.paged_cases import Case, make_case

BACKENDS: dict[str, Callable[[], ReplayBackend]] = {
    "reference": ReferenceBackend,
    "triton": lambda: TritonBackend(min_saved_bytes=-math.inf),
}
NUM_TOKENS, MAX_BLOCKS = 7, 40
STEPS = {
    "one row": make_case([(1, 9)]),
    "a group": make_case([(1, 44), (1, 60), (1, 43), (1, 5)], groups=[BlockGroup(0, 3, 5)]),
    "full, of long rows": make_case([(1, 300 + row) for row in range(NUM_TOKENS)], seed=1),
}


def padded(case: Case) -> Case:
    """Return the case with padding tokens behind those of its last row: NaN, and without a slot."""
    missing = NUM_TOKENS - len(case.query)
    step = replace(
        case.step,
        slot_mapping=torch.cat([case.step.slot_mapping, torch.full((missing,), -1)]),
        block_tables=torch.nn.functional.pad(
            case.step.block_tables, (0, MAX_BLOCKS - case.step.block_tables.shape[1], 0, missing)
        ),
    )
    filled = case.with_inputs(lambda rows: torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), torch.nan)]))
    return replace(filled, step=step)


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.slow)])
def test_every_step_is_computed_in_the_tensors_of_the_first(backend: str) -> None:
    attention = BACKENDS[backend]()
    first = padded(STEPS["one row"]).step
    prepared = attention.prepare_for_replay(first)
    for case in STEPS.values():
        full = padded(case)
        first.slot_mapping.copy_(full.step.slot_mapping)
        first.block_tables.copy_(full.step.block_tables)
        step = replace(full.step, slot_mapping=first.slot_mapping, block_tables=first.block_tables)
        prepared.update(step)
        output = full.run(attention, prepared)
        torch.testing.assert_close(output[: len(case.query)], case.truth, atol=2e-6, rtol=1e-5)


@pytest.mark.slow
def test_triton_keeps_its_lists_where_they_are() -> None:
    prepared = TritonBackend(-math.inf).prepare_for_replay(padded(STEPS["one row"]).step)
    seen = set()
    for case in STEPS.values():
        prepared.update(padded(case).step)
        padded(case).run(TritonBackend(), prepared)
        seen.add(addresses(prepared))
    assert len(seen) == 1


def addresses(prepared: Prepared) -> tuple[int, ...]:
    (work,) = prepared.work.values()
    return tuple(tensor.data_ptr() for tensor in (work.buffer, *work.items.values()))
