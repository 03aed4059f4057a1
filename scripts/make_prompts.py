"""Write random prompts as token ids to Parquet: python -m scripts.make_prompts prompts.parquet --rows 10000000

The only column is `token_ids` (list<int32>). Every row begins with the prefix of its group, followed by random tokens;
groups are mixed unless --sorted is given. Rows are written in batches, so memory does not grow with their number.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Number, lengths and groups of the prompts; equal shapes give equal prompts."""

    rows: int
    groups: int = 1_000
    min_tokens: int = 40
    max_tokens: int = 200
    vocab_size: int = 32_000
    shuffled: bool = True
    seed: int = 0


class PromptBatch(NamedTuple):
    """Prompts as one array of tokens, with the length of each."""

    token_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]


def make_batches(shape: PromptShape) -> Iterator[PromptBatch]:
    """Yield the prompts. A group's prefix has between half of `min_tokens` and half of `max_tokens` tokens."""
    generator = np.random.default_rng(shape.seed)
    prefixes = generator.integers(shape.vocab_size, size=(shape.groups, shape.max_tokens // 2), dtype=np.int32)
    prefix_lengths = generator.integers(shape.min_tokens // 2, shape.max_tokens // 2, shape.groups, endpoint=True)
    for start in range(0, shape.rows, ROWS_PER_BATCH):
        rows = np.arange(start, min(start + ROWS_PER_BATCH, shape.rows))
        group = rows * shape.groups // shape.rows
        if shape.shuffled:
            group = generator.integers(shape.groups, size=len(rows))
        lengths = generator.integers(shape.min_tokens, shape.max_tokens, len(rows), endpoint=True)
        row = np.repeat(np.arange(len(rows)), lengths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        token_ids = generator.integers(shape.vocab_size, size=len(row), dtype=np.int32)
        shared = np.flatnonzero(column < prefix_lengths[group][row])
        token_ids[shared] = prefixes[group[row[shared]], column[shared]]
        yield PromptBatch(token_ids, lengths)


def write_parquet(path: Path, shape: PromptShape) -> None:
    """Write the prompts, with one row group for each batch."""
    schema = pa.schema([("token_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in make_batches(shape):
            offsets = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(batch.token_ids))
            writer.write_table(pa.table([column], schema))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    for name in ("groups", "min_tokens", "max_tokens", "vocab_size", "seed"):
        default = PromptShape.__dataclass_fields__[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--sorted", action="store_false", dest="shuffled", help="groups one after the other")
    options = vars(parser.parse_args())
    path = options.pop("path")
    write_parquet(path, PromptShape(**options))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
