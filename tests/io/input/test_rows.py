"""RowLocations: the location of any row from one entry per run of rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.io.input.readers import Input, open_input
from batchgen.io.input.rows import RowLocations
from batchgen.spec.job_spec import InputSpec


def opened(*paths: Path) -> Input:
    return open_input(InputSpec(path=[str(path) for path in paths], text="t"))


def test_a_run_of_rows_is_stored_once() -> None:
    locations = RowLocations()
    for index, line in enumerate([1, 2, 4, 5, 6]):  # line 3 is blank
        locations.add(index, "x line", line)
    locations.add(5, "y line", 1)
    assert len(locations._kinds) == 3
    assert [locations[index] for index in range(6)] == [f"x line {n}" for n in (1, 2, 4, 5, 6)] + ["y line 1"]


def test_lines_have_the_locations_of_their_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"t": 1}\n\n{"t"\n{"t": 2}')
    (tmp_path / "b.jsonl").write_bytes(b'\n{"t": 3}\n')
    source = opened(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    rows = list(source.read_rows())
    assert [row.location for row in rows] == ["a.jsonl line 1", "a.jsonl line 3", "a.jsonl line 4", "b.jsonl line 2"]
    assert [source.locations[row.index] for row in rows] == [row.location for row in rows]


def test_parquet_rows_have_the_locations_of_their_rows(tmp_path: Path) -> None:
    for name, num_rows in [("a", 600), ("b", 0), ("c", 2)]:
        pq.write_table(pa.table({"t": ["x"] * num_rows}), tmp_path / f"{name}.parquet")
    source = opened(*(tmp_path / f"{name}.parquet" for name in "abc"))
    rows = list(source.read_rows())
    assert rows[600].location == "c.parquet row 1"
    assert [source.locations[row.index] for row in rows] == [row.location for row in rows]
