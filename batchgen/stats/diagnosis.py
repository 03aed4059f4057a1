"""Diagnosis: which memory pressure, if any, slowed a run down, what it cost, and which setting would help.

A pure function of a report. It tells three pressures apart because their remedies differ: a pool that is too small,
padding, and evicted prefixes. A model that does not fit its device is refused before the run (CapacityError).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchgen.plan.plan import BLOCK_SIZES
from batchgen.stats.counters import ratio
from batchgen.stats.format import count, percent

if TYPE_CHECKING:
    from batchgen.stats.report import RunReport

# A pressure below its threshold is not worth a change of settings.
WORK_SHARE = 0.05  # of the computed tokens, those computed before: two runs of the same job differ by as much
HELD_BACK_SHARE = 0.10  # of the rows that could run at once: a step's time grows more slowly than its rows
PADDING_SHARE = 0.20  # of the held slots: blocks of 16 stay below it as soon as a row has 32 tokens of its own

_ADVISED_BLOCK_SIZES = BLOCK_SIZES[-2::-1]  # all but the largest, largest first: small blocks make long block tables
NONE = "none: neither a small KV pool, nor padding, nor evicted prefixes cost this job enough to matter"
_TITLES = {"pool": "KV pool too small", "padding": "padding", "retention": "prefixes not kept"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One pressure that cost more than its threshold."""

    kind: str  # "pool" | "padding" | "retention"
    cost: str  # a sentence for people: what it cost, with figures
    cure: str  # a sentence for people: the setting that would help

    @property
    def title(self) -> str:
        return _TITLES[self.kind]


def diagnose(report: RunReport) -> list[Finding]:
    """Return at most one finding of each kind, and none when every pressure stayed below its threshold."""
    return [*_pool(report), *_padding(report), *_retention(report)]


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return one line for each finding, or one line that begins with "none"."""
    return [f"{finding.title}: {finding.cost}. {finding.cure}." for finding in findings] or [NONE]


def _pool(report: RunReport) -> Iterator[Finding]:
    recomputed = ratio(report.num_recomputed_tokens, _num_computed(report)) or 0.0
    held_back = report.held_back_share or 0.0
    if recomputed < WORK_SHARE and held_back < HELD_BACK_SHARE:
        return
    costs = []
    if report.num_waiting_steps:
        costs.append(
            f"in {report.num_waiting_steps:,} of {count(report.num_steps, 'step')} a row waited for KV blocks; on "
            f"average {report.mean_running or 0:.1f} rows ran at once, and {percent(held_back)} of those that could "
            "have run had to wait"
        )
    if report.num_preemptions:
        costs.append(
            f"{count(report.num_preemptions, 'preemption')} caused {count(report.num_recomputed_tokens, 'token')} to "
            f"be recomputed ({percent(recomputed)} of all computed tokens)"
        )
    yield Finding("pool", "; ".join(costs), _cure_of_pool(report, recomputed))


def _cure_of_pool(report: RunReport, recomputed: float) -> str:
    cure = _more_blocks(report)
    if recomputed >= WORK_SHARE:
        return f"{cure}; a higher engine.expected_tokens makes rows wait instead of being recomputed"
    if 2 * report.num_reservation_steps > report.num_waiting_steps:
        mean = ratio(report.num_output_tokens, report.num_samples) or 0.0
        return f"{cure}; if engine.expected_tokens is set, lower it towards {mean:.0f}, the mean completion length"
    return cure


def _more_blocks(report: RunReport) -> str:
    """Return the advice that leads to a larger pool; it depends on what decided the size."""
    if report.pool_reason == "engine.num_blocks":
        return f"Raise engine.num_blocks (now {report.num_blocks:,}), or leave it out"
    return (
        f"The available memory limited the pool to {report.num_blocks:,} blocks: raise engine.memory_fraction, or use "
        "a smaller model.dtype or a device with more memory"
    )


def _padding(report: RunReport) -> Iterator[Finding]:
    empty = report.internal_fragmentation or 0.0
    smaller = [size for size in _ADVISED_BLOCK_SIZES if size < report.block_size]
    # `ceilings` cover the last session's rows, `hit_ceiling` the rows of all sessions.
    now = report.ceilings.get(report.block_size, report.hit_ceiling)
    gains = {size: report.ceilings.get(size, 0) - now for size in smaller}
    gain = max(gains.values(), default=0)
    gain_share = ratio(gain, _num_computed(report)) or 0.0
    if not smaller or (empty < PADDING_SHARE and gain_share < WORK_SHARE):
        return
    costs = []
    if empty >= PADDING_SHARE:
        costs.append(
            f"{percent(empty)} of the KV slots held were empty, {report.empty_slots_per_row or 0:.1f} for each row"
            + (", while other rows waited for blocks" if report.num_waiting_steps else "")
        )
    if gain_share >= WORK_SHARE:
        costs.append(
            f"shared prefixes that do not fill a block of {report.block_size} were recomputed: with smaller blocks "
            f"{count(gain, 'more prompt token')} could be reused ({percent(gain_share)} of all computed tokens)"
        )
    yield Finding("padding", "; ".join(costs), f"Set engine.block_size: {_advised_size(report, smaller, gains)}")


def _advised_size(report: RunReport, smaller: Sequence[int], gains: dict[int, int]) -> int:
    """Return the largest block size that brings both costs below their thresholds, or else the smallest size."""
    empty, most = report.internal_fragmentation or 0.0, max(gains.values())
    for size in smaller:
        left = empty * size / report.block_size  # a row's empty slots shrink in proportion to its last block
        missed = ratio(most - gains[size], _num_computed(report)) or 0.0
        if left / (1 - empty + left) < PADDING_SHARE and missed < WORK_SHARE:
            return size
    return smaller[-1]


def _retention(report: RunReport) -> Iterator[Finding]:
    lost = report.hit_ceiling - report.num_hit_tokens
    share = ratio(lost, _num_computed(report)) or 0.0
    if share < WORK_SHARE:
        return
    cost = (
        f"{count(lost, 'prompt token')} that another row had already computed were recomputed ({percent(share)} of all "
        "computed tokens)"
    )
    if report.num_miss_evicted:
        evicted = "all" if report.num_miss_evicted >= lost else f"{report.num_miss_evicted:,}"
        cost += f"; {evicted} of them had been evicted when the pool was full"
    if report.visiting_order == "input":
        cure = "Set engine.order: prefix, which runs rows with the same prefix one after the other"
    else:
        cure = f"{_more_blocks(report)}, so that the next row's prefix stays in the cache"
    yield Finding("retention", cost, cure)


def _num_computed(report: RunReport) -> int:
    return report.num_prefill_tokens + report.num_decode_tokens
