"""The CPU backend equals the reference on random steps; unused slots are NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchgen_kernels import AttentionOptions, AttentionStep, BlockGroup, CpuBackend, LayerCache, ReferenceBackend

# (queries, tokens before them) of each row
ROWS = {
    "decode": [(1, 0), (1, 1), (1, 15), (1, 16), (1, 40)],
    "prefill": [(1, 0), (5, 0), (17, 0), (16, 16), (3, 29)],
    "mixed": [(1, 33), (20, 0), (1, 7), (9, 24), (1, 100)],
}
# (query heads, KV heads, head size)
HEADS = [(4, 2, 16), (8, 2, 64), (3, 3, 80), (2, 1, 96)]


def make_step(
    rows: list[tuple[int, int]], block_size: int, groups: list[BlockGroup], generator: torch.Generator
) -> tuple[AttentionStep, int]:
    """Return a step over random blocks, some of which the rows of a group share, and the number of blocks."""
    lengths = [queries + before for queries, before in rows]
    num_blocks = [-(-length // block_size) for length in lengths]
    pool = torch.randperm(sum(num_blocks) + 3, generator=generator)
    tables = torch.zeros(len(rows), max(num_blocks), dtype=torch.int64)
    taken = 0
    for row, count in enumerate(num_blocks):
        tables[row, :count] = pool[taken : taken + count]
        taken += count
    for group in groups:
        tables[group.start : group.stop, : group.num_blocks] = tables[group.start, : group.num_blocks]
    slots = [
        int(tables[row, position // block_size]) * block_size + position % block_size
        for row, (queries, before) in enumerate(rows)
        for position in range(before, before + queries)
    ]
    starts = [0]
    for queries, _ in rows:
        starts.append(starts[-1] + queries)
    return AttentionStep(torch.tensor(slots), tables, starts, lengths, groups, block_size), len(pool)


def run(backend: CpuBackend | ReferenceBackend, case: dict[str, object], poison: float) -> torch.Tensor:
    """Attend over a pool whose unwritten slots contain `poison`."""
    step, options = case["step"], case["options"]
    assert isinstance(step, AttentionStep)
    assert isinstance(options, AttentionOptions)
    cache = LayerCache(case["key_cache"].clone(), case["value_cache"].clone())  # type: ignore[attr-defined]
    written = torch.zeros(cache.key.shape[0] * step.block_size, dtype=torch.bool)
    for row, length in enumerate(step.seq_lens):
        for position in range(length):
            slot = step.block_tables[row, position // step.block_size] * step.block_size + position % step.block_size
            written[slot] = True
    blocks, offsets = (~written).nonzero()[:, 0] // step.block_size, (~written).nonzero()[:, 0] % step.block_size
    cache.key[blocks, :, offsets] = poison
    cache.value[blocks, :, offsets] = poison
    return backend.attend(case["query"], case["key"], case["value"], cache, backend.prepare(step), options)  # type: ignore[arg-type]


def make_case(
    rows: list[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    groups: list[BlockGroup] | None = None,
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> dict[str, object]:
    generator = torch.Generator().manual_seed(42)
    num_heads, num_kv_heads, head_size = heads
    step, num_blocks = make_step(rows, block_size, groups or [], generator)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_tokens = step.query_starts[-1]
    return {
        "step": step,
        "query": random(num_tokens, num_heads, head_size),
        "key": random(num_tokens, num_kv_heads, head_size),
        "value": random(num_tokens, num_kv_heads, head_size),
        "key_cache": random(num_blocks, num_kv_heads, block_size, head_size),
        "value_cache": random(num_blocks, num_kv_heads, block_size, head_size),
        "options": AttentionOptions(scale=head_size**-0.5, **options),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_equals_reference(rows: list[tuple[int, int]], heads: tuple[int, int, int], block_size: int) -> None:
    case = make_case(rows, heads, block_size)
    torch.testing.assert_close(
        run(CpuBackend(), case, torch.nan), run(ReferenceBackend(), case, torch.nan), atol=2e-6, rtol=2e-5
    )


GROUPED_ROWS = [(1, 40), (1, 200), (1, 161), (7, 165), (1, 200), (1, 180), (4, 160), (1, 5)]
GROUPS = [BlockGroup(1, 4, 20), BlockGroup(4, 7, 20)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_groups_equal_reference(heads: tuple[int, int, int]) -> None:
    case = make_case(GROUPED_ROWS, heads, 8, GROUPS)
    torch.testing.assert_close(
        run(CpuBackend(), case, torch.nan), run(ReferenceBackend(), case, torch.nan), atol=2e-6, rtol=2e-5
    )


@pytest.mark.parametrize("num_threads", [2, 3])
def test_the_output_does_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    """The tasks are shared out to as many threads as the backend says, also where fewer run at once."""
    case = make_case(GROUPED_ROWS, (4, 2, 16), 8, GROUPS)
    backend = CpuBackend()
    backend._num_threads = num_threads
    assert run(backend, case, torch.nan).equal(run(CpuBackend(), case, torch.nan))


@pytest.mark.parametrize(
    "options",
    [{"sliding_window": 12}, {"soft_cap": 5.0}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}],
    ids=["window", "cap", "sinks"],
)
def test_layers_computed_by_the_reference_equal_it(options: dict[str, Any]) -> None:
    case = make_case(ROWS["mixed"], (4, 2, 16), 16, **options)
    torch.testing.assert_close(run(CpuBackend(), case, torch.nan), run(ReferenceBackend(), case, torch.nan))


def test_bfloat16_is_close_to_float32() -> None:
    case = make_case(GROUPED_ROWS, (9, 3, 64), 8, GROUPS, torch.bfloat16)
    output = run(CpuBackend(), case, torch.nan)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, run(ReferenceBackend(), case, torch.nan), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
@pytest.mark.parametrize("tensor", ["key", "value"])
def test_a_token_that_is_not_finite_reaches_only_those_that_see_it(
    backend: type[CpuBackend | ReferenceBackend], tensor: str
) -> None:
    case = make_case([(9, 4), (1, 7)], (4, 2, 16), 4)
    clean = run(backend(), case, torch.nan)
    case[tensor][5] = torch.nan  # type: ignore[index]
    output = run(backend(), case, torch.nan)
    torch.testing.assert_close(output[:5], clean[:5], atol=2e-6, rtol=2e-5)
    assert output[5:9].isnan().all()
    torch.testing.assert_close(output[9:], clean[9:])
