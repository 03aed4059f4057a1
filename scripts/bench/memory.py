"""How much memory a long job takes: a whole run over many rows, with a model so small that only the rows count.

    python -m scripts.bench.memory [--rows 200000]

Input file, token store, plan, engine, journal, merge and report are the real ones. A short job runs first, so that what
is loaded or compiled once is not measured. RssAnon is the anonymous memory of the process; mapped files (the token
store, libraries) are not in it. Last line: JSON.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import click

from batchgen.job.run import run_job
from batchgen.spec.load import load_job
from batchgen.stats.report import RunReport
from scripts.bench.process_memory import PeakMemory, rss_anon
from tests.tiny_models import byte_tokenizer, save_model, table_model, upper_table

_WARM_UP_ROWS = 2_000


def run(folder: Path, model: Path, num_rows: int) -> RunReport:
    """Run a job of so many rows in a new folder."""
    folder.mkdir()
    with (folder / "in.jsonl").open("w", encoding="utf-8") as lines:
        for row in range(num_rows):
            lines.write(json.dumps({"id": row, "prompt": f"row {row}, of which not much is to be said but abc"}) + "\n")
    job = {
        "model": {"path": str(model), "dtype": "float32"},
        "input": {"path": "in.jsonl", "id": "id", "prompt": "prompt"},
        "sampling": {"max_tokens": 2},
        "output": {"path": "out"},
        "engine": {"device": "cpu", "max_num_seqs": 256, "max_batched_tokens": 4096, "attention": "torch"},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job), encoding="utf-8")
    return run_job(load_job(path), quiet=True)


@click.command()
@click.option("--rows", default=200_000, show_default=True)
def main(rows: int) -> None:
    """Print the anonymous memory before the job, its peak and the growth."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder, "model"), table_model(upper_table()), byte_tokenizer())
        run(Path(folder, "warm-up"), model, _WARM_UP_ROWS)
        begin, start = time.monotonic(), rss_anon()
        with PeakMemory() as memory:
            report = run(Path(folder, "job"), model, rows)
    seconds, grown = time.monotonic() - begin, memory.peak - start
    click.echo(f"{report.num_ok:,} rows in {seconds:.0f} s")
    click.echo(f"RssAnon: {start >> 20} MiB before, {memory.peak >> 20} MiB at most, {grown >> 20} MiB more")
    click.echo(json.dumps({"rows": rows, "seconds": seconds, "start": start, "peak": memory.peak}))


if __name__ == "__main__":
    main()
