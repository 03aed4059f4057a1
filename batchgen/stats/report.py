"""RunReport: the versioned artifact of a run. Knows figures and their names; knows no engine and no page.

It is flat on purpose: each field is a column of `stats/job.parquet`, so that many nights can be read as one table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from textwrap import fill
from typing import Any, get_args

from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.counters import RowTime, RunStats, ratio
from batchgen.stats.diagnosis import Finding, diagnose, finding_lines
from batchgen.stats.format import nonbreaking, percent, rate
from batchgen.stats.stopwatch import Part

SCHEMA_VERSION = 1

# The keys of a report's mappings. They are fixed, since each one is a column.
SECONDS = (*get_args(Part), "prefill", "decode", "total")
ENVIRONMENT = ("batchgen", "torch", "transformers", "python", "device", "dtype")

_TABLE_WIDTH = 120


@dataclass(slots=True)
class RowCounts:
    """Counts how the rows ended."""

    num_ok: int = 0
    num_failed: int = 0
    num_resumed: int = 0  # those of num_ok and num_failed that earlier sessions committed
    errors: Counter[str] = field(default_factory=Counter)  # kind of error -> rows

    @property
    def num_done(self) -> int:
        """The rows that ended, good or failed."""
        return self.num_ok + self.num_failed

    def observe(self, output: RequestOutput) -> None:
        """Count a finished row."""
        if output.finish_reason is FinishReason.ERROR:
            self.num_failed += 1
            self.errors[_kind(output.error or "")] += 1
        else:
            self.num_ok += 1


def _kind(error: str) -> str:
    """Strip location and numbers from an error message, so that rows with the same fault are counted as one kind."""
    words = error.split(": ", 1)[-1].split()
    return " ".join("…" if any(c.isdigit() for c in word) else word for word in words)


@dataclass(frozen=True, slots=True)
class PlannedFigures:
    """Figures that are known before the run; all 0 when no row was left to run."""

    num_unique_tokens: int = 0  # prompt tokens that any engine must compute, whatever its block size
    hit_ceiling: int = 0  # the most prompt tokens that can be reused in full blocks
    ceilings: Mapping[int, int] = field(default_factory=dict)  # block size -> hit ceiling
    num_blocks: int = 0
    pool_reason: str = "no row to run"


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that was measured in a run, in tokens unless a name says otherwise; None where nothing ran."""

    schema_version: int
    started: str  # local time, ISO 8601
    # rows
    num_rows: int
    num_ok: int
    num_failed: int
    errors: Mapping[str, int]  # kind -> rows, the most common first
    # Where the prompts' KV came from: num_prompt_tokens = num_hit_tokens + num_copied_tokens + all num_miss_*.
    num_prompt_tokens: int
    num_hit_tokens: int
    num_miss_first: int  # no earlier row has them
    num_miss_tail: int  # not in a full block
    num_miss_last: int  # a prompt's last token must be computed
    num_miss_evicted: int  # evicted when the pool was full
    num_miss_order: int  # an earlier row has them, but had not computed them yet
    num_recomputed_tokens: int  # lost by preemption and computed again
    hit_rate: float | None
    hit_ceiling: int
    hit_ceiling_rate: float | None
    hit_efficiency: float | None  # hits / ceiling; 1.0 also when there is nothing to share
    num_unique_tokens: int
    ceilings: Mapping[int, int]  # block size -> hit ceiling
    # KV memory
    visiting_order: str  # "prefix" | "input"
    num_groups: int  # prefix groups of which a row ran
    block_size: int
    num_blocks: int
    pool_reason: str  # what decided the number of blocks
    peak_used_blocks: int
    internal_fragmentation: float | None  # mean over steps
    peak_internal_fragmentation: float | None
    empty_slots_per_row: float | None
    num_refused_though_free: int  # external fragmentation
    static_reservation_waste: float | None  # empty share of the slots if every row reserved the context limit
    sharing: float | None
    # pressure
    num_steps: int
    num_waiting_steps: int  # steps in which the pool kept a row waiting
    num_reservation_steps: int  # of those: steps in which only the reservation for expected output did
    held_back_share: float | None  # of the rows that could have run at once; mean over steps
    num_preemptions: int
    mean_running: float | None
    peak_running: int
    # speed
    num_output_tokens: int
    num_prefill_tokens: int  # computed, recomputed ones included
    num_decode_tokens: int
    output_tokens_per_second: float | None
    prompt_tokens_per_second: float | None  # hits included: the rate at which the input is consumed
    computed_tokens_per_second: float | None
    seconds: Mapping[str, float]  # by part, and "total"; prefill and decode are parts of "run"
    tail_share: float | None  # share of the run's time in which the last 5 % of the rows ended
    slowest_rows: Sequence[RowTime]  # slowest first
    findings: Sequence[Finding]  # the diagnosis; empty when no pressure exceeded its threshold
    environment: Mapping[str, str]
    # The fields from here on have defaults, since reports written before they existed lack them.
    num_resumed_rows: int = 0  # steps, groups and slowest rows are those of the last session only
    num_miss_scored: int = 0  # an earlier row has them, but their logits were needed; the sixth cause of a miss
    num_copied_tokens: int = 0  # copied from the first part of a block; hits, not included in num_hit_tokens
    num_samples: int = 0  # completions that ended: `sampling.n` for every row that ran
    num_overrun_tokens: int = 0  # computed for rows that had ended, which the host did not know yet; never output

    @classmethod
    def from_json(cls, text: str) -> RunReport:
        """Read the content of `report.json`. Raises ValueError if it is not a report, or one of another version."""
        values = json.loads(text)
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}; this version of batchgen reads {SCHEMA_VERSION}")
        try:
            report = cls(**{**values, **_typed_values(values)})
            report.table()  # checks that every figure can be shown
            assert set(report.seconds) == set(SECONDS), "seconds has other parts"
        except (TypeError, KeyError, AttributeError, ValueError, AssertionError) as error:
            raise ValueError(f"the fields are not those of a report: {error}") from error
        return report

    @property
    def exit_code(self) -> int:
        """The exit code of the run: 0 if every row is good, 3 if some failed."""
        return 3 if self.num_failed else 0

    def to_json(self) -> str:
        """Return the content of `report.json`."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    def summary(self) -> str:
        """Return the last line that a run prints."""
        return f"ok={self.num_ok} failed={self.num_failed}"

    def table(self) -> str:
        """Return the figures that a user looks at first, one on each line."""
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
        """Return the rate of hits in full blocks beside its ceiling, and the share that was copied."""
        full = ratio(self.num_hit_tokens, self.num_prompt_tokens)
        copied = ratio(self.num_copied_tokens, self.num_prompt_tokens)
        return f"{percent(full)} of prompt tokens (the most this job allows: {percent(self.hit_ceiling_rate)})" + (
            f", and {percent(copied)} copied from partially shared blocks" if self.num_copied_tokens else ""
        )


_ALL_FAILED = "every row failed; the column `error` says why"


def _typed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the types that JSON does not keep: integer keys and the dataclasses of this package."""
    return {
        "ceilings": {int(size): tokens for size, tokens in values["ceilings"].items()},
        "slowest_rows": [RowTime(**row) for row in values["slowest_rows"]],
        "findings": [Finding(**finding) for finding in values["findings"]],
    }


# The figures that RunStats has under the same name: fields and properties, not methods.
_SAME_NAMES = [
    each.name
    for each in fields(RunReport)
    if hasattr(RunStats, each.name) and not callable(getattr(RunStats, each.name))
]


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
    """Make the report of a run from its counters. `seconds` has the parts of the run; prefill and decode are added."""
    prompt, run_seconds = stats.prompt, seconds.get("run", 0.0)
    assert prompt.total == prompt.found + sum(prompt.misses.values())
    assert environment.keys() == set(ENVIRONMENT)
    parts = {part: value for part, value in seconds.items() if part != "total"}
    report = RunReport(
        **{name: getattr(stats, name) for name in _SAME_NAMES},
        schema_version=SCHEMA_VERSION,
        started=started,
        num_rows=rows.num_done,
        num_ok=rows.num_ok,
        num_failed=rows.num_failed,
        errors=dict(rows.errors.most_common()),
        num_prompt_tokens=prompt.total,
        num_hit_tokens=prompt.hit,
        **{f"num_miss_{cause}": tokens for cause, tokens in prompt.misses.items()},
        hit_ceiling=planned.hit_ceiling,
        hit_ceiling_rate=ratio(planned.hit_ceiling, prompt.total),
        hit_efficiency=(prompt.hit / planned.hit_ceiling if planned.hit_ceiling else 1.0) if prompt.total else None,
        num_unique_tokens=planned.num_unique_tokens,
        ceilings=dict(planned.ceilings),
        visiting_order=visiting_order,
        num_groups=sum(group is not None for group in stats.groups),
        num_blocks=planned.num_blocks,
        pool_reason=planned.pool_reason,
        output_tokens_per_second=ratio(stats.num_output_tokens, run_seconds),
        prompt_tokens_per_second=ratio(prompt.total, run_seconds),
        computed_tokens_per_second=ratio(stats.num_prefill_tokens + stats.num_decode_tokens, run_seconds),
        seconds={**parts, "prefill": stats.prefill_seconds, "decode": stats.decode_seconds, "total": seconds["total"]},
        tail_share=stats.tail_share(),
        slowest_rows=stats.slowest.rows(),
        findings=[],
        environment=dict(environment),
        num_resumed_rows=rows.num_resumed,
        num_copied_tokens=prompt.copied,
    )
    return replace(report, findings=diagnose(report))
