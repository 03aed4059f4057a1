"""Time the three workloads of jobs/bench on this machine, beside other engines, and against the machine's limits.

    python -m scripts.bench                       all three, three times each
    python -m scripts.bench gsm128 --repeat 5     one of them
    python -m scripts.bench samples16x8 --set sampling.n=1    with other settings
    python -m scripts.bench --peer openvino=/path/to/its/venv/bin/python    ours, the peer, ours, the peer, ...
    python -m scripts.bench --sharing-off samples16x8    also with every completion a row of its own, nothing shared

One process, after a warm-up that compiles what is compiled at first use. What counts is the engine's part of a run
(prefill and decode of all rows); loading is listed apart. A peer runs in a process of its own and counts its generate
call, after a warm-up of its own. The limits are measured in the same run. Last line: JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from batchgen.job.run import run_job
from batchgen.spec.load import Job, load_job
from scripts.bench_peers import NAMES, Peer, PeerRun, Work, check_peers, make_work, run_peer
from scripts.bench_roofline import Body, Limits, floor_seconds, measure_limits

JOBS = Path(__file__).resolve().parent.parent / "jobs/bench"
WORKLOADS = ("bbh128", "gsm128", "samples16x8")


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a workload."""

    seconds: float  # of the engine
    prefill: float
    decode: float
    tokens_per_second: float  # of output
    hit_rate: float
    peak_blocks: int
    roofline: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """One series of seconds by another, of the best run and of the median."""

    best: float
    median: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratios:
        """Below 1 where ours are less."""
        return cls(min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs))


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a workload, in the order in which they were made."""

    ours: list[Timing] = field(default_factory=list)
    unshared: list[Timing] = field(default_factory=list)
    peers: dict[str, list[PeerRun]] = field(default_factory=dict)

    def against(self, peer: str) -> Ratios:
        """Our time by a peer's."""
        return Ratios.of(_seconds(self.ours), _seconds(self.peers[peer]))

    def without_sharing(self) -> tuple[Ratios, float]:
        """Time and peak KV blocks, each with nothing shared by what it is otherwise."""
        blocks = max(timing.peak_blocks for timing in self.unshared) / max(timing.peak_blocks for timing in self.ours)
        return Ratios.of(_seconds(self.unshared), _seconds(self.ours)), blocks

    def to_dict(self) -> dict[str, object]:
        """Everything that was measured, with the ratios."""
        document = asdict(self) | {"ours_by_peer": {peer: asdict(self.against(peer)) for peer in self.peers}}
        if self.unshared:
            seconds, blocks = self.without_sharing()
            document["unshared_by_shared"] = {"seconds": asdict(seconds), "peak_blocks": blocks}
        return document


def _seconds(runs: Sequence[Timing] | Sequence[PeerRun]) -> list[float]:
    return [run.seconds for run in runs]


def load_workload(name: str, settings: Sequence[str]) -> Job:
    """A job of jobs/bench."""
    return load_job(JOBS / f"{name}.yaml", settings)


def time_workload(name: str, settings: Sequence[str], body: Body, limits: Limits) -> Timing:
    """Run a job once, from its file to its output folder."""
    with tempfile.TemporaryDirectory() as folder:
        report = run_job(load_workload(name, [f"output.path={folder}/out", *settings]), quiet=True)
        floor = floor_seconds(report, Path(folder, "out"), body, limits)
    engine = report.seconds["prefill"] + report.seconds["decode"]
    return Timing(
        seconds=report.seconds["run"],
        prefill=report.seconds["prefill"],
        decode=report.seconds["decode"],
        tokens_per_second=report.num_output_tokens / report.seconds["run"],
        hit_rate=report.hit_rate or 0.0,
        peak_blocks=report.peak_used_blocks,
        roofline=floor / engine,
    )


def time_unshared(name: str, settings: Sequence[str], body: Body, limits: Limits) -> Timing:
    """The same completions with nothing shared: each is a row of its own, and there is no prefix cache."""
    job = load_workload(name, settings)
    with tempfile.TemporaryDirectory() as folder:
        rows = repeat_rows(job, Path(folder, "rows.parquet"))
        alone = [f"input.path={rows}", "input.limit=null", "sampling.n=1", "engine.prefix_cache=false"]
        return time_workload(name, [*settings, *alone], body, limits)


def repeat_rows(job: Job, target: Path) -> Path:
    """Write the input of a job, `sampling.n` times each row."""
    table = pq.read_table(job.spec.input.path).slice(0, job.spec.input.limit)
    indices = [index for index in range(table.num_rows) for _ in range(job.spec.sampling.n)]
    pq.write_table(table.take(pa.array(indices, pa.int64())), target)
    return target


def run_all(
    works: dict[str, Work | None], repeat: int, settings: Sequence[str], peers: Sequence[Peer], unshared: Sequence[str]
) -> tuple[Limits, dict[str, Runs]]:
    """Every workload by every engine in turn, `repeat` times over, after a warm-up."""
    body = Body.of(load_workload(next(iter(works)), settings))
    for name in works:  # each compiles what the others may not use
        time_workload(name, ["input.limit=4", "sampling.max_tokens=4", *settings], body, Limits(1.0, 1.0))
    limits = measure_limits()
    runs = {name: Runs(peers={peer.name: [] for peer in peers}) for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            runs[name].ours.append(time_workload(name, settings, body, limits))
            if name in unshared:
                runs[name].unshared.append(time_unshared(name, settings, body, limits))
            for peer in peers:
                assert work is not None
                runs[name].peers[peer.name].append(run_peer(peer, work))
    return limits, runs


def lines(limits: Limits, runs: dict[str, Runs]) -> Iterator[str]:
    """For people."""
    yield (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}: "
        f"{limits.flops / 1e9:.0f} GFLOP/s, {limits.bandwidth / 1e9:.1f} GB/s"
    )
    yield f"{'workload':14}{'best s':>8}{'median s':>10}{'prefill s':>11}{'decode s':>10}{'roofline':>10}{'hits':>8}"
    for name, each in runs.items():
        best = min(each.ours, key=lambda timing: timing.seconds)
        median = statistics.median(_seconds(each.ours))
        yield (
            f"{name:14}{best.seconds:8.1f}{median:10.1f}{best.prefill:11.1f}{best.decode:10.1f}{best.roofline:10.0%}"
            f"{best.hit_rate:8.1%}"
        )
    for name, each in runs.items():
        for peer, theirs in each.peers.items():
            yield f"{name:14}{_against(_seconds(theirs), each.against(peer))} of {theirs[0].engine}"
        if each.unshared:
            ratios, blocks = each.without_sharing()
            yield (
                f"{name:14}{min(_seconds(each.unshared)):8.1f} s with nothing shared: {ratios.best:.2f} times as long "
                f"(median {ratios.median:.2f}), {blocks:.2f} times the KV blocks at the peak"
            )


def _against(seconds: Sequence[float], ratios: Ratios) -> str:
    times = f"{min(seconds):8.1f}{statistics.median(seconds):10.1f}"
    return f"{times} s: ours takes {ratios.best:.2f} (median {ratios.median:.2f})"


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(WORKLOADS))
@click.option("--repeat", default=3, show_default=True, help="runs of each, one workload after the other")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="as of `batchgen run`")
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
    engines = [Peer.parse(text) for text in peers]
    check_peers(engines)
    names = workloads or WORKLOADS
    works = {name: make_work(load_workload(name, settings)) if engines else None for name in names}
    limits, runs = run_all(works, repeat, settings, engines, unshared)
    for line in lines(limits, runs):
        click.echo(line)
    click.echo(json.dumps({"limits": asdict(limits), **{name: each.to_dict() for name, each in runs.items()}}))


if __name__ == "__main__":
    main()
