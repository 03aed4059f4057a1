"""RunReport: the versioned artifact of a run. Knows figures and their names; knows no engine and no page.

Flat on purpose: one field is one column of `stats/job.parquet`, so that many nights make one table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import fill
from typing import Any, get_args

from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.counters import RowTime, RunStats, ratio
from batchgen.stats.diagnosis import Finding, diagnose, finding_lines
from batchgen.stats.format import nonbreaking, percent, rate
from batchgen.stats.stopwatch import Part

SCHEMA_VERSION = 1

# The keys of the mappings of a report: fixed, since each is a column.
SECONDS = (*get_args(Part), "prefill", "decode", "total")
ENVIRONMENT = ("batchgen", "torch", "transformers", "python", "device", "dtype")

_TABLE_WIDTH = 120


@dataclass(slots=True)
class RowCounts:
    """How the rows ended; fed with every output."""

    num_ok: int = 0
    num_failed: int = 0
    num_resumed: int = 0  # of these two, from earlier sessions
    errors: Counter[str] = field(default_factory=Counter)  # what went wrong, without the row's place

    @property
    def num_done(self) -> int:
        """Rows that ended, in either way."""
        return self.num_ok + self.num_failed

    def observe(self, output: RequestOutput) -> None:
        """A row is done."""
        if output.finish_reason is FinishReason.ERROR:
            self.num_failed += 1
            self.errors[_kind(output.error or "")] += 1
        else:
            self.num_ok += 1


def _kind(error: str) -> str:
    """An error without its place and its numbers, so that a thousand rows with one fault are one kind."""
    words = error.split(": ", 1)[-1].split()
    return " ".join("…" if any(c.isdigit() for c in word) else word for word in words)


@dataclass(frozen=True, slots=True)
class PlannedFigures:
    """What was known before the run; all 0 when no row was left to run."""

    num_unique_tokens: int = 0  # prompt tokens that any engine must compute, block borders aside
    hit_ceiling: int = 0  # most prompt tokens that full blocks allow to reuse
    ceilings: Mapping[int, int] = field(default_factory=dict)  # the same for other block sizes
    num_blocks: int = 0
    pool_reason: str = "no row to run"


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything measured in a run. Tokens unless a name says otherwise; None where nothing ran."""

    schema_version: int
    started: str  # local time, ISO 8601
    # rows
    num_rows: int
    num_ok: int
    num_failed: int
    errors: Mapping[str, int]  # kind -> rows, the most common first
    # where the prompts' KV came from: num_prompt_tokens = num_hit_tokens + num_copied_tokens + the causes of a miss
    num_prompt_tokens: int
    num_hit_tokens: int
    num_miss_first: int  # no row before had it
    num_miss_tail: int  # not in a full block
    num_miss_last: int  # a prompt's last token must be computed
    num_miss_evicted: int  # given away when the pool was full
    num_miss_order: int  # a row before has it, and it was not there yet
    num_recomputed_tokens: int  # lost by preemption and computed again
    hit_rate: float | None
    hit_ceiling: int
    hit_ceiling_rate: float | None
    hit_efficiency: float | None  # hits / ceiling; 1.0 also when there is nothing to share
    num_unique_tokens: int
    ceilings: Mapping[int, int]  # block size -> hit ceiling
    # KV memory
    visiting_order: str  # "prefix" | "input"
    num_groups: int  # prefix groups that had a row
    block_size: int
    num_blocks: int
    pool_reason: str  # what decided the number of blocks
    peak_used_blocks: int
    internal_fragmentation: float | None  # mean over steps
    peak_internal_fragmentation: float | None
    empty_slots_per_row: float | None
    num_refused_though_free: int  # external fragmentation
    static_reservation_waste: float | None  # what reserving the context limit for every row would have left empty
    sharing: float | None
    # pressure
    num_steps: int
    num_waiting_steps: int  # in which the pool held a row back
    num_reservation_steps: int  # of those: only the room kept for expected output did
    held_back_share: float | None  # of the rows that could have run at once, mean over steps
    num_preemptions: int
    mean_running: float | None
    peak_running: int
    # speed
    num_output_tokens: int
    num_prefill_tokens: int  # computed, those computed again included
    num_decode_tokens: int
    output_tokens_per_second: float | None
    prompt_tokens_per_second: float | None  # hits included: what a user sees go by
    computed_tokens_per_second: float | None
    seconds: Mapping[str, float]  # by part, and "total"; prefill and decode are parts of "run"
    tail_share: float | None  # of the run's time, for the last 5 % of the rows to end
    slowest_rows: Sequence[RowTime]  # slowest first
    findings: Sequence[Finding]  # what cost this job; empty when nothing did
    environment: Mapping[str, str]
    # 0 in reports of a time when nothing could be resumed. Steps, groups and slow rows are those of the last session
    num_resumed_rows: int = 0
    num_miss_scored: int = 0  # a row before had it, but its logits were asked for; the sixth cause of a miss
    num_copied_tokens: int = 0  # prompt tokens copied from the beginning of a block; hits, beside num_hit_tokens
    num_samples: int = 0  # that ended: `sampling.n` for every row that ran
    num_overrun_tokens: int = 0  # computed for rows that had ended, which was not known yet; no output tokens

    @classmethod
    def from_json(cls, text: str) -> RunReport:
        """Read the content of `report.json`. Raises ValueError if it is none, or one of another version."""
        values = json.loads(text)
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}, this batchgen reads {SCHEMA_VERSION}")
        try:
            report = cls(**{**values, **_revived(values)})
            report.table()  # every figure can be shown
            assert set(report.seconds) == set(SECONDS), "seconds by other parts"
        except (TypeError, KeyError, AttributeError, ValueError, AssertionError) as error:
            raise ValueError(f"not the fields of a report: {error}") from error
        return report

    @property
    def exit_code(self) -> int:
        """0: every row is good; 3: some failed."""
        return 3 if self.num_failed else 0

    def to_json(self) -> str:
        """The content of `report.json`."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    def summary(self) -> str:
        """The last line of a run."""
        return f"ok={self.num_ok} failed={self.num_failed}"

    def table(self) -> str:
        """The figures a user looks at first."""
        lines = {
            "rows": f"{self.num_rows:,}: {self.num_ok:,} ok, {self.num_failed:,} failed"
            + (f"; {self.num_resumed_rows:,} of them before this session" if self.num_resumed_rows else ""),
            "prompt tokens": f"{self.num_prompt_tokens:,} ({rate(self.prompt_tokens_per_second)})",
            "output tokens": f"{self.num_output_tokens:,} ({rate(self.output_tokens_per_second)})",
            "prefix hit rate": self._hits(),
            "KV waste": f"{percent(self.internal_fragmentation)} of held slots empty "
            f"(peak {percent(self.peak_internal_fragmentation)})",
            "KV blocks": f"peak {self.peak_used_blocks:,} of {self.num_blocks:,}, {self.num_preemptions:,} preemptions",
            "time": ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self.seconds.items()),
        }
        if self.errors:
            error, count = next(iter(self.errors.items()))
            lines["most common error"] = f"{error} ({count:,} {'row' if count == 1 else 'rows'})"
        width = max(map(len, lines)) + 2
        indent = " " * width
        diagnosis = [
            fill(nonbreaking(line), _TABLE_WIDTH, initial_indent=indent, subsequent_indent=indent).replace(
                "\u00a0", " "
            )
            for line in (finding_lines(self.findings) if self.num_ok or not self.num_failed else [_ALL_FAILED])
        ]
        table = [f"{name:<{width}}{value}" for name, value in lines.items()]
        return "\n".join([*table, f"{'diagnosis':<{width}}{diagnosis[0].lstrip()}", *diagnosis[1:]])

    def _hits(self) -> str:
        """Hits in full blocks beside their ceiling, and what copies added."""
        full = ratio(self.num_hit_tokens, self.num_prompt_tokens)
        copied = ratio(self.num_copied_tokens, self.num_prompt_tokens)
        return f"{percent(full)} of prompt tokens (the most this job allows: {percent(self.hit_ceiling_rate)})" + (
            f", and {percent(copied)} copied from half-shared blocks" if self.num_copied_tokens else ""
        )


_ALL_FAILED = "every row failed; see their errors"


def _revived(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON does not keep: keys that are numbers, and our own types."""
    return {
        "ceilings": {int(size): tokens for size, tokens in values["ceilings"].items()},
        "slowest_rows": [RowTime(**row) for row in values["slowest_rows"]],
        "findings": [Finding(**finding) for finding in values["findings"]],
    }


def make_report(
    rows: RowCounts,
    stats: RunStats,
    planned: PlannedFigures,
    *,
    started: str,
    visiting_order: str,
    seconds: Mapping[str, float],
    environment: Mapping[str, str],
) -> RunReport:
    """Put a run's counters together. `seconds` has the parts of the run; those of the steps are added."""
    prompt, run_seconds = stats.prompt, seconds.get("run", 0.0)
    assert prompt.total == prompt.found + sum(prompt.misses.values())
    assert environment.keys() == set(ENVIRONMENT)
    total = seconds["total"]
    report = RunReport(
        schema_version=SCHEMA_VERSION,
        started=started,
        num_rows=rows.num_done,
        num_ok=rows.num_ok,
        num_failed=rows.num_failed,
        errors=dict(rows.errors.most_common()),
        num_prompt_tokens=prompt.total,
        num_hit_tokens=prompt.hit,
        **{f"num_miss_{cause}": tokens for cause, tokens in prompt.misses.items()},
        num_recomputed_tokens=stats.num_recomputed_tokens,
        hit_rate=stats.hit_rate,
        hit_ceiling=planned.hit_ceiling,
        hit_ceiling_rate=ratio(planned.hit_ceiling, prompt.total),
        hit_efficiency=(prompt.hit / planned.hit_ceiling if planned.hit_ceiling else 1.0) if prompt.total else None,
        num_unique_tokens=planned.num_unique_tokens,
        ceilings=dict(planned.ceilings),
        visiting_order=visiting_order,
        num_groups=sum(group is not None for group in stats.groups),
        block_size=stats.block_size,
        num_blocks=planned.num_blocks,
        pool_reason=planned.pool_reason,
        peak_used_blocks=stats.peak_used_blocks,
        internal_fragmentation=stats.internal_fragmentation,
        peak_internal_fragmentation=stats.peak_internal_fragmentation,
        empty_slots_per_row=stats.empty_slots_per_row,
        num_refused_though_free=stats.num_refused_though_free,
        static_reservation_waste=stats.static_reservation_waste,
        sharing=stats.sharing,
        num_steps=stats.num_steps,
        num_waiting_steps=stats.num_waiting_steps,
        num_reservation_steps=stats.num_reservation_steps,
        held_back_share=stats.held_back_share,
        num_preemptions=stats.num_preemptions,
        mean_running=stats.mean_running,
        peak_running=stats.peak_running,
        num_output_tokens=stats.num_output_tokens,
        num_prefill_tokens=stats.num_prefill_tokens,
        num_decode_tokens=stats.num_decode_tokens,
        output_tokens_per_second=ratio(stats.num_output_tokens, run_seconds),
        prompt_tokens_per_second=ratio(prompt.total, run_seconds),
        computed_tokens_per_second=ratio(stats.num_prefill_tokens + stats.num_decode_tokens, run_seconds),
        seconds={
            **{part: value for part, value in seconds.items() if part != "total"},
            "prefill": stats.prefill_seconds,
            "decode": stats.decode_seconds,
            "total": total,
        },
        tail_share=stats.tail_share(),
        slowest_rows=stats.slowest.rows(),
        findings=[],
        environment=dict(environment),
        num_resumed_rows=rows.num_resumed,
        num_copied_tokens=prompt.copied,
        num_samples=stats.num_samples,
        num_overrun_tokens=stats.num_overrun_tokens,
    )
    return replace(report, findings=diagnose(report))
