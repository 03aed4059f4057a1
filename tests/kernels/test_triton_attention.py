"""The Triton backend equals the reference in Triton's interpreter; unused slots are NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from batchgen_kernels import BlockGroup
from batchgen_kernels.triton import TritonBackend
from tests.kernels.paged_cases import Case, make_case

pytestmark = pytest.mark.slow

SHARE_ALL = -math.inf
ROWS = {
    "decode": [(1, 0), (1, 1), (1, 31), (1, 32), (1, 50)],
    "prefill": [(9, 0), (17, 0), (16, 16), (33, 29)],
    "mixed": [(1, 33), (20, 0), (3, 7), (1, 90)],
}
# query heads, KV heads, K and V head size
HEADS = [(4, 2, 16, 16), (3, 1, 80, 80), (2, 2, 96, 96), (17, 1, 16, 16), (4, 1, 24, 16), (4, 2, 32, 64)]
# two groups, one of them with a prefill row between its decode rows, and rows without a group
GROUPED_ROWS = [(1, 20), (1, 60), (1, 43), (9, 41), (1, 60), (2, 40), (1, 41), (1, 5)]
GROUPS = [BlockGroup(1, 5, 5), BlockGroup(5, 7, 5)]


def check(case: Case, min_saved_bytes: float = SHARE_ALL, atol: float = 2e-6) -> None:
    backend = TritonBackend(min_saved_bytes)
    prepared = backend.prepare(case.step)
    output = case.run(backend, prepared)
    assert output.dtype == case.query.dtype
    torch.testing.assert_close(output.float(), case.truth, atol=atol, rtol=1e-5)
    (work,) = prepared.work.values()
    assert (len(work.items["shared"]) > 0) == (bool(case.step.groups) and min_saved_bytes == SHARE_ALL)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_equals_reference(rows: list[tuple[int, int]], heads: tuple[int, int, int, int]) -> None:
    check(make_case(rows, heads))


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_any_block_size_equals_reference(block_size: int) -> None:
    check(make_case(ROWS["mixed"], block_size=block_size))


@pytest.mark.parametrize("min_saved_bytes", [SHARE_ALL, math.inf], ids=["shared", "not-shared"])
@pytest.mark.parametrize("heads", [(4, 2, 16, 16), (3, 1, 80, 80)], ids=str)
def test_groups_equal_reference(heads: tuple[int, int, int, int], min_saved_bytes: float) -> None:
    check(make_case(GROUPED_ROWS, heads, groups=GROUPS), min_saved_bytes)


def test_groups_of_one_row_and_many_groups_equal_reference() -> None:
    groups = [BlockGroup(row, row + 1, 1) for row in range(4)] + [BlockGroup(r, r + 2, 2) for r in (4, 6, 8, 10)]
    check(make_case([(1, 16 + row) for row in range(12)], groups=groups))


def test_group_larger_than_a_tile_equals_reference() -> None:
    check(make_case([(1, 24 + row) for row in range(20)], groups=[BlockGroup(0, 20, 3)]))


def test_long_row_is_split_and_equals_reference() -> None:
    case = make_case([(1, 300), (1, 3), (2, 150)])
    backend = TritonBackend()
    prepared = backend.prepare(case.step)
    torch.testing.assert_close(case.run(backend, prepared), case.truth, atol=2e-6, rtol=1e-5)
    (work,) = prepared.work.values()
    assert len(work.items["decode"]) > 3


SPECIAL = {
    "window": {"sliding_window": 12},
    "window-of-one": {"sliding_window": 1},
    "cap": {"soft_cap": 5.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"sliding_window": 33, "soft_cap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, -torch.inf])},
}


@pytest.mark.parametrize("rows", [[(33, 29), (1, 90), (40, 0)], GROUPED_ROWS], ids=["alone", "groups"])
@pytest.mark.parametrize("options", SPECIAL.values(), ids=SPECIAL.keys())
def test_special_layers_equal_reference(options: dict[str, Any], rows: list[tuple[int, int]]) -> None:
    check(make_case(rows, groups=GROUPS if rows is GROUPED_ROWS else (), **options), atol=4e-6)


def test_float16_is_close_to_float32() -> None:
    check(make_case(GROUPED_ROWS, (9, 3, 64, 64), groups=GROUPS, dtype=torch.float16), atol=2e-3)


@pytest.mark.parametrize("tensor", ["key", "value"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_token_that_is_not_finite_reaches_only_those_that_see_it(tensor: str, window: int | None) -> None:
    case = make_case([(40, 4), (1, 7)], sliding_window=window)
    clean = case.run(TritonBackend())
    getattr(case, tensor)[5] = torch.nan
    output = case.run(TritonBackend())
    seen = slice(5, 40) if window is None else slice(5, 5 + window)
    assert output[seen].isnan().all()
    output[seen] = clean[seen]
    torch.testing.assert_close(output, clean)


def test_strided_inputs_are_supported() -> None:
    """The model passes [heads, tokens, head size], transposed."""
    check(make_case(ROWS["mixed"]).with_inputs(lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1)))


def test_unwritten_memory_is_not_read(nan_empty: None) -> None:
    check(make_case(GROUPED_ROWS, groups=GROUPS))
