"""Diagnosis: which pressure, if any, cost a run, how much, and the setting that would help. Pure, on a report.

Three pressures, kept apart because their cures differ: a pool too small, padding, and prefixes that were not kept. A
model that does not fit its device at all is none of them: it is refused before a run (CapacityError).
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

# Below these a pressure is not worth a change of settings.
WORK_SHARE = 0.05  # of the tokens computed, spent on what had been computed before: two runs of one job differ as much
HELD_BACK_SHARE = 0.10  # of the rows that could run at once: a step's time grows more slowly than its rows
PADDING_SHARE = 0.20  # of the held slots: blocks of 16 stay below it as soon as a row has 32 tokens of its own

_ADVISED_BLOCK_SIZES = BLOCK_SIZES[-2::-1]  # all but the largest, the larger ones first: small blocks make long tables
NONE = "none: neither a small pool, nor padding, nor lost prefixes cost this job anything worth a change"
_TITLES = {"pool": "pool too small", "padding": "padding", "retention": "prefixes not kept"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One pressure that cost more than its threshold."""

    kind: str  # "pool" | "padding" | "retention"
    cost: str  # what it cost, in words and numbers
    cure: str  # the setting that would help

    @property
    def title(self) -> str:
        return _TITLES[self.kind]


def diagnose(report: RunReport) -> list[Finding]:
    """At most one finding of each kind; none when no pressure cost more than its threshold."""
    return [*_pool(report), *_padding(report), *_retention(report)]


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding, or one that says "none"."""
    return [f"{finding.title}: {finding.cost}. {finding.cure}." for finding in findings] or [NONE]


def _pool(report: RunReport) -> Iterator[Finding]:
    recomputed = ratio(report.num_recomputed_tokens, _num_computed(report)) or 0.0
    held_back = report.held_back_share or 0.0
    if recomputed < WORK_SHARE and held_back < HELD_BACK_SHARE:
        return
    costs = []
    if report.num_waiting_steps:
        costs.append(
            f"in {report.num_waiting_steps:,} of {count(report.num_steps, 'step')} a row waited for KV blocks; of the "
            f"rows that could have run at once {percent(held_back)} did not ({report.mean_running or 0:.1f} ran)"
        )
    if report.num_preemptions:
        costs.append(
            f"{count(report.num_preemptions, 'preemption')} made {count(report.num_recomputed_tokens, 'token')} be "
            f"computed again ({percent(recomputed)} of all computed)"
        )
    yield Finding("pool", "; ".join(costs), _cure_of_pool(report, recomputed))


def _cure_of_pool(report: RunReport, recomputed: float) -> str:
    cure = _more_blocks(report)
    if recomputed >= WORK_SHARE:
        return f"{cure}; a higher engine.expected_tokens lets rows wait instead of being computed twice"
    if 2 * report.num_reservation_steps > report.num_waiting_steps:
        mean = ratio(report.num_output_tokens, report.num_samples) or 0.0
        return f"{cure}; if engine.expected_tokens is set, lower it towards the {mean:.0f} tokens of a completion"
    return cure


def _more_blocks(report: RunReport) -> str:
    """What gives a larger pool, by what decided its size."""
    if report.pool_reason == "engine.num_blocks":
        return f"Raise engine.num_blocks (now {report.num_blocks:,}), or leave it out"
    return (
        f"The memory decided the pool of {report.num_blocks:,} blocks: raise engine.memory_fraction, or use a smaller "
        "model.dtype or a device with more memory"
    )


def _padding(report: RunReport) -> Iterator[Finding]:
    empty = report.internal_fragmentation or 0.0
    smaller = [size for size in _ADVISED_BLOCK_SIZES if size < report.block_size]
    # `ceilings` are of the last session's rows, `hit_ceiling` of all.
    now = report.ceilings.get(report.block_size, report.hit_ceiling)
    gains = {size: report.ceilings.get(size, 0) - now for size in smaller}
    gain = max(gains.values(), default=0)
    gain_share = ratio(gain, _num_computed(report)) or 0.0
    if not smaller or (empty < PADDING_SHARE and gain_share < WORK_SHARE):
        return
    costs = []
    if empty >= PADDING_SHARE:
        costs.append(
            f"{percent(empty)} of the KV slots held were empty, {report.empty_slots_per_row or 0:.1f} a row"
            + (", while rows waited for blocks" if report.num_waiting_steps else "")
        )
    if gain_share >= WORK_SHARE:
        costs.append(
            f"shared prefixes that do not fill a block of {report.block_size} were computed again: smaller blocks let "
            f"{count(gain, 'more prompt token')} be reused ({percent(gain_share)} of all computed)"
        )
    yield Finding("padding", "; ".join(costs), f"Set engine.block_size: {_advised_size(report, smaller, gains)}")


def _advised_size(report: RunReport, smaller: Sequence[int], gains: dict[int, int]) -> int:
    """The largest block size that brings both costs below their thresholds, or else the smallest there is."""
    empty, most = report.internal_fragmentation or 0.0, max(gains.values())
    for size in smaller:
        left = empty * size / report.block_size  # a row's empty slots shrink as its last block does
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
        f"{count(lost, 'prompt token')} that another row had computed before were computed again ({percent(share)} of "
        "all computed)"
    )
    if report.num_miss_evicted:
        evicted = "all" if report.num_miss_evicted >= lost else f"{report.num_miss_evicted:,}"
        cost += f"; {evicted} of them had been given away when the pool was full"
    if report.visiting_order == "input":
        cure = "Set engine.order: prefix, which runs the rows of a prefix one after the other"
    else:
        cure = f"{_more_blocks(report)}, so that the next row's prefix can stay"
    yield Finding("retention", cost, cure)


def _num_computed(report: RunReport) -> int:
    return report.num_prefill_tokens + report.num_decode_tokens
