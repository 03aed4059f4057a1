"""Time and memory of the plan alone, on made-up prompts: python -m scripts.bench_plan 100000 1000000 10000000

Each number of rows gets its own process. The token store is filled from the batches of make_prompts.py, without a
file of prompts; then the job is planned and its groups are found. Every row may go on to a context limit of 4,096
tokens, so that all rows differ in their longest output. Memory is RssAnon, sampled: mapped files are not in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import threading
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
from scripts.make_prompts import PromptShape, make_batches

BLOCK_SIZE = 16
CONTEXT_LIMIT = 4096


@dataclass(slots=True)
class Figures:
    """What one number of rows took: seconds, CPU seconds and the peak of RssAnon in bytes, by part."""

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
        """Time and peak memory of what is done inside."""
        with PeakMemory() as memory:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            yield
            self.seconds[name] = round(time.perf_counter() - begin, 3)
            self.cpu_seconds[name] = round(time.process_time() - cpu_begin, 3)
        self.rss_anon[name] = memory.peak


class PeakMemory(threading.Thread):
    """The largest RssAnon of this process while it is entered, looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, rss_anon())

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.join()
        self.peak = max(self.peak, rss_anon())


def rss_anon() -> int:
    """Bytes of anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure(rows: int, order: str, folder: str) -> Figures:
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
    for batch in make_batches(PromptShape(rows)):
        store.extend(batch.token_ids, batch.lengths)
    store.seal()
    return store


def show(figures: Figures) -> None:
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
    # A process each: memory that was freed is not always given back.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for rows in options.rows:
            results.append(pool.apply(measure, (rows, options.order, options.folder)))
            show(results[-1])
    print(json.dumps([asdict(figures) for figures in results]))


if __name__ == "__main__":
    main()
