"""Time and memory of the plan alone, on made-up prompts: python -m scripts.bench.plan 100000 1000000 10000000

Each number of rows gets its own process. The token store is filled from the batches of `scripts.make_prompts`, without
a file of prompts; then the job is planned and its groups are found. Every row may use a context of 4,096 tokens, so
that rows of different lengths have different `max_tokens`. Memory is RssAnon, sampled: mapped files are not in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from batchgen.plan.first_difference import first_difference
from batchgen.plan.groups import prefix_groups, summarise_groups
from batchgen.plan.plan import make_plan
from batchgen.plan.token_store import TokenStore
from scripts.bench.process_memory import PeakMemory
from scripts.make_prompts import PromptShape, make_batches

BLOCK_SIZE = 16
CONTEXT_LIMIT = 4096


@dataclass(slots=True)
class Figures:
    """Seconds, CPU seconds and the peak of RssAnon in bytes for one number of rows, by part of the work."""

    rows: int
    order: str
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    rss_anon: dict[str, int] = field(default_factory=dict)
    hit_ceiling: int = 0
    groups: int = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the time and the peak memory of what runs inside."""
        with PeakMemory() as memory:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            yield
            self.seconds[name] = round(time.perf_counter() - begin, 3)
            self.cpu_seconds[name] = round(time.process_time() - cpu_begin, 3)
        self.rss_anon[name] = memory.peak


def measure(rows: int, order: str, folder: str) -> Figures:
    """Plan so many made-up rows, with the token store below `folder`."""
    figures = Figures(rows, order)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with figures.part("store"):
            store = fill(TokenStore(Path(scratch, "tokens.bin")), rows)
        positions = np.arange(len(store))
        with figures.part("plan"):
            plan = make_plan(
                store,
                positions,
                CONTEXT_LIMIT - store.lengths(positions),
                block_size=BLOCK_SIZE,
                max_num_seqs=256,
                by_prefix=order == "prefix",
            )
        with figures.part("groups"):
            groups = prefix_groups(plan.depth_first.shared[:-1] // BLOCK_SIZE)
            summary = summarise_groups(groups, plan.depth_first.positions, BLOCK_SIZE)
        with figures.part("first difference"):
            first_difference(store, plan.depth_first)
    figures.tokens, figures.hit_ceiling, figures.groups = plan.num_prompt_tokens, plan.hit_ceiling, summary.num_groups
    return figures


def fill(store: TokenStore, rows: int) -> TokenStore:
    """Write so many made-up prompts to a store and seal it."""
    for batch in make_batches(PromptShape(rows)):
        store.extend(batch.token_ids, batch.lengths)
    store.seal()
    return store


def show(figures: Figures) -> None:
    """Print a row of the table."""
    cpu, memory = figures.cpu_seconds["plan"], max(figures.rss_anon.values())
    cells = [f"{figures.rows:,}", f"{figures.tokens:,}", f"{figures.seconds['store']:.1f}"]
    cells += [f"{figures.seconds['plan']:.2f}", f"{cpu:.2f}", f"{cpu / figures.tokens * 1e9:.1f}"]
    cells += [f"{figures.seconds['groups']:.2f}", f"{memory / 1e6:,.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--order", choices=["prefix", "input"], default="prefix")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the token store: 480 bytes a row")
    options = parser.parse_args()
    print("| rows | tokens | store s | plan s | plan CPU s | CPU ns a token | groups s | peak RssAnon MB |")
    print("|--:" * 8 + "|")
    results = []
    # One process for each: the allocator may keep memory that was freed.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for rows in options.rows:
            results.append(pool.apply(measure, (rows, options.order, options.folder)))
            show(results[-1])
    print(json.dumps([asdict(figures) for figures in results]))


if __name__ == "__main__":
    main()
