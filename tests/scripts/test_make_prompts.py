"""Random prompts have the lengths and groups of their shape."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts import make_prompts
from scripts.make_prompts import PromptShape, make_batches, write_parquet


def prompts_of(shape: PromptShape) -> list[list[int]]:
    prompts = []
    for batch in make_batches(shape):
        ids = iter(batch.token_ids.tolist())
        prompts += [[next(ids) for _ in range(length)] for length in batch.lengths.tolist()]
    return prompts


def test_lengths_and_number_of_prefixes() -> None:
    prompts = prompts_of(PromptShape(500, groups=3, min_tokens=20, max_tokens=30))
    assert len(prompts) == 500
    assert {len(prompt) for prompt in prompts} == set(range(20, 31))
    assert len({tuple(prompt[:10]) for prompt in prompts}) == 3
    assert len({tuple(prompt) for prompt in prompts}) == 500


@pytest.mark.parametrize("shuffled", [True, False])
def test_groups_are_mixed_or_follow_each_other(shuffled: bool) -> None:
    starts = [tuple(prompt[:10]) for prompt in prompts_of(PromptShape(500, 3, 20, 30, shuffled=shuffled))]
    num_changes = sum(a != b for a, b in pairwise(starts))
    assert (num_changes > 100) == shuffled
    assert shuffled or num_changes == 2


def test_the_file_holds_the_prompts_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_prompts, "ROWS_PER_BATCH", 40)
    shape = PromptShape(100, groups=5)
    write_parquet(tmp_path / "prompts.parquet", shape)
    file = pq.ParquetFile(tmp_path / "prompts.parquet")
    assert file.num_row_groups == 3
    assert str(file.schema_arrow.field("token_ids").type) == "list<element: int32>"
    assert file.read()["token_ids"].to_pylist() == prompts_of(shape)


def test_equal_seeds_give_equal_prompts() -> None:
    assert prompts_of(PromptShape(50)) == prompts_of(PromptShape(50))
    assert prompts_of(PromptShape(50)) != prompts_of(PromptShape(50, seed=1))
