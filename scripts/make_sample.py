"""Make jobs/data/bbh_sample.parquet from the whole BIG-Bench Hard: python -m scripts.make_sample PATH/TO/bbh.parquet

The sample has two rows of each task in random order, so that a run finds shared prefixes only by sorting.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLE = Path(__file__).resolve().parent.parent / "jobs" / "data" / "bbh_sample.parquet"
COLUMNS = ["id", "task", "system", "prompt", "target"]
ROWS_PER_TASK = 2
SEED = 0


def pick(tasks: list[str]) -> list[int]:
    """Return the positions of the first rows of every task, shuffled with a fixed seed."""
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, task in enumerate(tasks):
        positions[task].append(position)
    picked = [position for task in sorted(positions) for position in positions[task][:ROWS_PER_TASK]]
    random.Random(SEED).shuffle(picked)
    return picked


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m scripts.make_sample PATH/TO/bbh.parquet")
    table: pa.Table = pq.read_table(sys.argv[1], columns=COLUMNS)
    pq.write_table(table.take(pick(table["task"].to_pylist())), SAMPLE, compression="zstd")
    print(f"wrote {SAMPLE}")


if __name__ == "__main__":
    main()
