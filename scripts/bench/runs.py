"""What the runs of a workload measured, and how it is shown. Knows no clock and starts nothing."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from scripts.bench.peers import PeerRun
from scripts.roofline import Limits


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a workload."""

    seconds: float  # of the engine
    prefill: float
    decode: float
    tokens_per_second: float  # of output
    hit_rate: float
    peak_blocks: int
    roofline: float  # the least time of its steps, divided by prefill and decode


@dataclass(frozen=True, slots=True)
class Ratios:
    """One series of seconds divided by another: their best runs and their medians."""

    best: float
    median: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratios:
        """Divide ours by theirs: below 1 where ours are faster."""
        return cls(min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs))


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a workload, in the order in which they were made."""

    ours: list[Timing] = field(default_factory=list)
    unshared: list[Timing] = field(default_factory=list)
    peers: dict[str, list[PeerRun]] = field(default_factory=dict)

    def against(self, peer: str) -> Ratios:
        """Divide our time by a peer's."""
        return Ratios.of(_seconds(self.ours), _seconds(self.peers[peer]))

    def without_sharing(self) -> tuple[Ratios, float]:
        """Divide the time and the peak KV blocks of runs with nothing shared by those of the others."""
        blocks = max(timing.peak_blocks for timing in self.unshared) / max(timing.peak_blocks for timing in self.ours)
        return Ratios.of(_seconds(self.unshared), _seconds(self.ours)), blocks

    def to_dict(self) -> dict[str, object]:
        """Return everything that was measured, with the ratios."""
        document = asdict(self) | {"ours_by_peer": {peer: asdict(self.against(peer)) for peer in self.peers}}
        if self.unshared:
            seconds, blocks = self.without_sharing()
            document["unshared_by_shared"] = {"seconds": asdict(seconds), "peak_blocks": blocks}
        return document


def _seconds(runs: Sequence[Timing] | Sequence[PeerRun]) -> list[float]:
    return [run.seconds for run in runs]


def lines(limits: Limits, runs: Mapping[str, Runs]) -> Iterator[str]:
    """Yield the lines of the table, workload by workload."""
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
