"""Time the three workloads of jobs/bench on this machine, next to other engines and to the machine's limits.

    python -m scripts.bench                       all three, three times each
    python -m scripts.bench gsm128 --repeat 5     one of them
    python -m scripts.bench samples16x8 --set sampling.n=1    with other settings
    python -m scripts.bench --peer openvino=/path/to/its/venv/bin/python    ours, the peer, ours, the peer, ...
    python -m scripts.bench --sharing-off samples16x8    also with a row for each completion and nothing shared

All runs of batchgen are in this process, after a warm-up that compiles the kernels. Only the engine's part of a run
counts (prefill and decode of all rows), not loading. A peer runs in a process of its own, and only its generate call
counts, after its own warm-up. The machine's limits are measured between warm-up and runs. Each run is announced on
stderr; the table goes to stdout, and its last line is JSON.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import click
import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.job.run import run_job
from batchgen.spec.load import Job, load_job
from scripts.bench.peers import NAMES, Peer, PeerRun, Work, check_peers, make_work, run_peer
from scripts.bench.roofline import measure_limits, model_size, run_least_seconds
from scripts.bench.runs import Runs, Timing, lines
from scripts.roofline import Limits, ModelSize

JOBS = Path(__file__).resolve().parents[2] / "jobs/bench"
WORKLOADS = ("bbh128", "gsm128", "samples16x8")

Run = TypeVar("Run", Timing, PeerRun)


@dataclass(frozen=True, slots=True)
class Options:
    """What is timed, as chosen on the command line."""

    names: Sequence[str]  # of workloads
    repeat: int
    settings: Sequence[str]  # overrides of the job files
    peers: Sequence[Peer]
    unshared: Sequence[str]  # workloads that also run with nothing shared


class Progress:
    """Lines on stderr that say what the bench does, after the seconds since its start."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def say(self, text: str) -> None:
        click.echo(f"[{time.perf_counter() - self._start:7.1f} s] {text}", err=True)

    def run(self, name: str, work: Callable[[], Run]) -> Run:
        """Do a run, with a line before it and one after it that has the seconds that count."""
        self.say(f"{name}: begins")
        result = work()
        self.say(f"{name}: ended, {result.seconds:.1f} s")
        return result


def load_workload(name: str, settings: Sequence[str]) -> Job:
    """Load a job of jobs/bench."""
    return load_job(JOBS / f"{name}.yaml", settings)


def time_workload(name: str, settings: Sequence[str], size: ModelSize, limits: Limits) -> Timing:
    """Run a job once, from its file to its output folder."""
    with tempfile.TemporaryDirectory() as folder:
        report = run_job(load_workload(name, [f"output.path={folder}/out", *settings]), quiet=True)
        least = run_least_seconds(report, Path(folder, "out"), size, limits)
    engine = report.seconds["prefill"] + report.seconds["decode"]
    return Timing(
        seconds=report.seconds["run"],
        prefill=report.seconds["prefill"],
        decode=report.seconds["decode"],
        tokens_per_second=report.num_output_tokens / report.seconds["run"],
        hit_rate=report.hit_rate or 0.0,
        peak_blocks=report.peak_used_blocks,
        roofline=least / engine,
    )


def time_unshared(name: str, settings: Sequence[str], size: ModelSize, limits: Limits) -> Timing:
    """Generate the same completions with nothing shared: each has its own row, and the prefix cache is off."""
    job = load_workload(name, settings)
    with tempfile.TemporaryDirectory() as folder:
        rows = repeat_rows(job, Path(folder, "rows.parquet"))
        alone = [f"input.path={rows}", "input.limit=null", "sampling.n=1", "engine.prefix_cache=false"]
        return time_workload(name, [*settings, *alone], size, limits)


def repeat_rows(job: Job, path: Path) -> Path:
    """Write the input of a job with each row `sampling.n` times."""
    table = pq.read_table(job.spec.input.path).slice(0, job.spec.input.limit)
    indices = [index for index in range(table.num_rows) for _ in range(job.spec.sampling.n)]
    pq.write_table(table.take(pa.array(indices, pa.int64())), path)
    return path


def run_all(options: Options, works: Mapping[str, Work], progress: Progress) -> tuple[Limits, dict[str, Runs]]:
    """Time every workload by every engine in turn, `repeat` times over, after a warm-up. `works` is for the peers."""
    names, settings = options.names, options.settings
    size, short = model_size(load_workload(names[0], settings)), ["input.limit=4", "sampling.max_tokens=4", *settings]
    for name in names:  # each compiles kernels that the others may not use
        progress.run(f"{name}, warm-up", partial(time_workload, name, short, size, Limits(1.0, 1.0)))
    progress.say("limits of the machine: begins")
    limits = measure_limits()
    progress.say("limits of the machine: ended")
    runs = {name: Runs(peers={peer.name: [] for peer in options.peers}) for name in names}
    for index, name in product(range(1, options.repeat + 1), names):
        label, each = f"{name}, run {index} of {options.repeat}", runs[name]
        each.ours.append(progress.run(f"{label}, batchgen", partial(time_workload, name, settings, size, limits)))
        if name in options.unshared:
            timing = progress.run(f"{label}, nothing shared", partial(time_unshared, name, settings, size, limits))
            each.unshared.append(timing)
        for peer in options.peers:
            each.peers[peer.name].append(progress.run(f"{label}, {peer.name}", partial(run_peer, peer, works[name])))
    return limits, runs


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(WORKLOADS))
@click.option("--repeat", default=3, show_default=True, help="runs of each, one workload after the other")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="override a key, as in `batchgen run`")
@click.option("--peer", "peers", multiple=True, metavar="NAME=PYTHON", help=f"also another engine: {', '.join(NAMES)}")
@click.option(
    "--sharing-off", "unshared", multiple=True, type=click.Choice(WORKLOADS), help="time this also with nothing shared"
)
def main(
    workloads: tuple[str, ...],
    repeat: int,
    settings: tuple[str, ...],
    peers: tuple[str, ...],
    unshared: tuple[str, ...],
) -> None:
    """Print a table and a line of JSON."""
    options = Options(workloads or WORKLOADS, repeat, settings, [Peer.parse(text) for text in peers], unshared)
    check_peers(options.peers)
    works, progress = {}, Progress()
    for name in options.names if options.peers else ():
        progress.say(f"{name}: prompts and model for the peers")
        works[name] = make_work(load_workload(name, settings))
    limits, runs = run_all(options, works, progress)
    for line in lines(limits, runs):
        click.echo(line)
    click.echo(json.dumps({"limits": asdict(limits), **{name: each.to_dict() for name, each in runs.items()}}))


if __name__ == "__main__":
    main()
