"""The reference equals dense attention over the same tokens, which tests block tables, slots and windows."""

from __future__ import annotations

import pytest
import torch

from batchgen_kernels import AttentionOptions, AttentionStep, LayerCache, ReferenceBackend, copy_blocks, reference


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None) -> torch.Tensor:
    """Attend from the last queries of one row to all its tokens, one head and one query at a time."""
    length, num_queries = len(keys), len(query)
    out = torch.empty(num_queries, query.shape[1], values.shape[-1])
    for q in range(num_queries):
        position = length - num_queries + q
        first = 0 if window is None else max(position - window + 1, 0)
        for head in range(query.shape[1]):
            kv_head = head * keys.shape[1] // query.shape[1]
            scores = keys[first : position + 1, kv_head] @ query[q, head] / 4
            out[q, head] = scores.softmax(0) @ values[first : position + 1, kv_head]
    return out


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("num_queries", [1, 4, 9])
def test_paged_row_equals_dense_attention(num_queries: int, window: int | None) -> None:
    torch.manual_seed(42)
    keys, values, query = torch.randn(9, 2, 16), torch.randn(9, 2, 8), torch.randn(num_queries, 4, 16)
    table = torch.tensor([[3, 0, 2]])  # blocks of 4: positions 0-3 in block 3, 4-7 in block 0, 8 in block 2
    cache = LayerCache(torch.full((5, 2, 4, 16), torch.nan), torch.full((5, 2, 4, 8), torch.nan))
    slots = torch.tensor([12, 13, 14, 15, 0, 1, 2, 3, 8])
    before = 9 - num_queries
    for position in range(before):
        cache.key[slots[position] // 4, :, slots[position] % 4] = keys[position]
        cache.value[slots[position] // 4, :, slots[position] % 4] = values[position]
    step = AttentionStep(slots[before:], table, [0, num_queries], [9], [], 4)
    backend = ReferenceBackend()
    options = AttentionOptions(scale=0.25, sliding_window=window)
    out = backend.attend(query, keys[before:], values[before:], cache, backend.prepare(step), options)
    torch.testing.assert_close(out, dense(query, keys, values, window))


def test_many_queries_are_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(42)
    query, key, value = torch.randn(9, 4, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 16)
    step = AttentionStep(torch.arange(9), torch.arange(3)[None], [0, 9], [9], [], 4)
    backend, options = ReferenceBackend(), AttentionOptions(scale=0.25)

    def attend() -> torch.Tensor:
        cache = LayerCache(torch.zeros(3, 2, 4, 16), torch.zeros(3, 2, 4, 16))
        return backend.attend(query, key, value, cache, backend.prepare(step), options)

    whole = attend()
    monkeypatch.setattr(reference, "_MAX_SCORES", 4 * 9 * 2)  # two queries at a time
    torch.testing.assert_close(attend(), whole)


def test_copies_are_read_before_any_is_written() -> None:
    """Blocks 0 and 1 are swapped, and block 0 is copied to block 2."""
    key, value = torch.arange(4.0).view(4, 1, 1, 1), torch.arange(4.0, 8).view(4, 1, 1, 1)
    copy_blocks(LayerCache(key, value), torch.tensor([0, 1, 0]), torch.tensor([1, 0, 2]))
    assert key.flatten().tolist() == [1, 0, 0, 3]
    assert value.flatten().tolist() == [5, 4, 4, 7]
