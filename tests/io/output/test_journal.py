"""Chunks and their merge."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq

from batchgen.io.output import journal
from batchgen.io.output.schema import JOURNAL_SCHEMA
from batchgen.request_output import FinishReason, RequestOutput


def test_chunk_is_sorted_typed_and_in_small_row_groups(tmp_path: Path) -> None:
    rows = [RequestOutput(i, FinishReason.STOP, sample_index=s) for i in range(300) for s in range(2)]
    random.Random(0).shuffle(rows)
    journal.write_chunk(tmp_path / "chunk.parquet", rows)
    chunk = pq.ParquetFile(tmp_path / "chunk.parquet")
    assert [chunk.metadata.row_group(i).num_rows for i in range(chunk.num_row_groups)] == [256, 256, 88]
    table = chunk.read()
    assert table.schema == JOURNAL_SCHEMA
    positions = list(zip(table["row_index"].to_pylist(), table["sample_index"].to_pylist(), strict=True))
    assert positions == [(i, s) for i in range(300) for s in range(2)]


def test_every_field_is_read_back(tmp_path: Path) -> None:
    output = RequestOutput(5, FinishReason.LENGTH, 1, "text", "why", 10, 20, 8)
    journal.write_chunk(tmp_path / "chunk.parquet", [output])
    [found] = journal.merge_chunks([tmp_path / "chunk.parquet"], tmp_path / "merge")
    assert found == output
    assert found.finish_reason is FinishReason.LENGTH


def test_columns_of_a_chunk_are_found_by_name(tmp_path: Path) -> None:
    output = RequestOutput(5, FinishReason.STOP, 1, "text", "why", 10, 20, 8, origin=[1, 2])
    journal.write_chunk(tmp_path / "chunk.parquet", [output])
    table = pq.read_table(tmp_path / "chunk.parquet")
    pq.write_table(table.select(table.column_names[::-1]), tmp_path / "chunk.parquet")
    assert list(journal.merge_chunks([tmp_path / "chunk.parquet"], tmp_path / "merge")) == [output]
    assert list(journal.read_endings([tmp_path / "chunk.parquet"])) == [
        RequestOutput(5, FinishReason.STOP, 1, error="why", completion_tokens=20, origin=[1, 2])
    ]


def test_more_than_fan_in_chunks_are_merged_in_rounds(tmp_path: Path) -> None:
    chunks = [tmp_path / f"chunk-{i}.parquet" for i in range(130)]
    for i, chunk in enumerate(chunks):  # rows of all chunks interleave
        journal.write_chunk(chunk, [RequestOutput(i + 130 * k, FinishReason.STOP) for k in range(2)])
    rows = journal.merge_chunks(chunks, tmp_path / "merge")
    assert [row.row_index for row in rows] == list(range(260))
    assert len(list((tmp_path / "merge").iterdir())) == 3  # 64 + 64 + 2


def test_no_chunks_give_no_rows(tmp_path: Path) -> None:
    assert list(journal.merge_chunks([], tmp_path / "merge")) == []
