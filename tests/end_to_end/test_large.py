"""Columns of more than 2 GiB, beyond which 32-bit offsets overflow. Minutes long, so only when asked for.

BATCHGEN_SLOW_TESTS=1 python -m pytest tests/end_to_end/test_large.py
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.harness import TinyRunner

ROOT = Path(__file__).resolve().parents[2]
NUM_ROWS = 2200
DATA_BYTES = NUM_ROWS << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("BATCHGEN_SLOW_TESTS" not in os.environ, reason="takes minutes: set BATCHGEN_SLOW_TESTS=1"),
]


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.list_(pa.string())], ids=str)
def test_column_over_2_gib_in_one_row_group(run_tiny: TinyRunner, type: pa.DataType) -> None:
    """It is carried through the whole job, whose memory stays under three times the data."""
    text = "x" * 2**20
    values = [[text] if pa.types.is_list(type) else text] * (NUM_ROWS // 2)
    half = pa.array(values, type)
    table = pa.table({"prompt": ["note a"] * NUM_ROWS, "text": pa.chunked_array([half, half])})
    path = run_tiny.folder / "large.parquet"
    pq.write_table(table, path, row_group_size=NUM_ROWS, compression="zstd", use_dictionary=["prompt"])
    del table, half
    job_file = run_tiny.write(path, output={"path": "out"})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [sys.executable, "-m", "batchgen", "run", str(job_file), "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"peak memory {peak / 2**30:.2f} GiB for {DATA_BYTES / 2**30:.2f} GiB of data")
    assert peak < 3 * DATA_BYTES
    part = pq.ParquetFile(run_tiny.folder / "out" / "completions" / "part-00000.parquet")
    assert part.metadata.num_rows == NUM_ROWS
    assert all(row == "A" for batch in part.iter_batches(100, columns=["completion"]) for row in batch[0].to_pylist())
    assert sum(batch.num_rows for batch in part.iter_batches(50, columns=["text"])) == NUM_ROWS
