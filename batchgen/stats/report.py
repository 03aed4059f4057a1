"""RunReport: the versioned artifact of a run, as `report.json` and as a table. Knows figures, no engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from batchgen.request_output import FinishReason, RequestOutput
from batchgen.stats.counters import RunStats

SCHEMA_VERSION = 1


@dataclass(slots=True)
class RowCounts:
    """How the rows ended; fed with every output."""

    num_ok: int = 0
    num_failed: int = 0
    num_output_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # what went wrong, without the row's place

    def observe(self, output: RequestOutput) -> None:
        """A row is done."""
        self.num_output_tokens += output.completion_tokens or 0
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
class RunReport:
    """Everything measured in a run. Tokens and seconds unless a name says otherwise; None where nothing ran."""

    num_rows: int
    num_ok: int
    num_failed: int
    errors: Mapping[str, int]  # kind -> rows, the most common first
    num_prompt_tokens: int
    num_output_tokens: int
    num_hit_tokens: int
    hit_ceiling: int  # most prompt tokens that this job's prompts allow to reuse at this block size
    hit_rate: float | None
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    num_steps: int
    block_size: int
    num_blocks: int
    pool_reason: str  # what decided the number of blocks
    peak_used_blocks: int
    internal_fragmentation: float | None  # mean over steps
    peak_internal_fragmentation: float | None
    seconds: Mapping[str, float]  # by part, and "total"
    environment: Mapping[str, str]

    @property
    def exit_code(self) -> int:
        """0: every row is good; 3: some failed."""
        return 3 if self.num_failed else 0

    @property
    def output_tokens_per_second(self) -> float | None:
        """Over the time the engine ran."""
        run = self.seconds.get("run", 0.0)
        return self.num_output_tokens / run if run else None

    def to_json(self) -> str:
        """The content of `report.json`."""
        figures = asdict(self) | {"output_tokens_per_second": self.output_tokens_per_second}
        return json.dumps({"schema_version": SCHEMA_VERSION, **figures}, indent=2, allow_nan=False) + "\n"

    def summary(self) -> str:
        """The last line of a run."""
        return f"ok={self.num_ok} failed={self.num_failed}"

    def table(self) -> str:
        """The figures a user looks at first."""
        ceiling = _share(self.hit_ceiling, self.num_prompt_tokens)
        lines = {
            "rows": f"{self.num_rows:,}: {self.num_ok:,} ok, {self.num_failed:,} failed",
            "prompt tokens": f"{self.num_prompt_tokens:,}",
            "output tokens": f"{self.num_output_tokens:,} ({_rate(self.output_tokens_per_second)})",
            "prefix hit rate": f"{_percent(self.hit_rate)} (the most this job allows: {ceiling})",
            "KV waste": f"{_percent(self.internal_fragmentation)} of held slots empty "
            f"(peak {_percent(self.peak_internal_fragmentation)})",
            "KV blocks": f"peak {self.peak_used_blocks:,} of {self.num_blocks:,}, {self.num_preemptions:,} preemptions",
            "time": ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self.seconds.items()),
        }
        if self.errors:
            error, count = next(iter(self.errors.items()))
            lines["most common error"] = f"{error} ({count:,} rows)"
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def make_report(
    rows: RowCounts,
    stats: RunStats,
    *,
    hit_ceiling: int,
    num_blocks: int,
    pool_reason: str,
    seconds: Mapping[str, float],
    environment: Mapping[str, str],
) -> RunReport:
    """Put a run's counters together."""
    return RunReport(
        num_rows=rows.num_ok + rows.num_failed,
        num_ok=rows.num_ok,
        num_failed=rows.num_failed,
        errors=dict(rows.errors.most_common()),
        num_prompt_tokens=stats.num_prompt_tokens,
        num_output_tokens=rows.num_output_tokens,
        num_hit_tokens=stats.num_hit_tokens,
        hit_ceiling=hit_ceiling,
        hit_rate=stats.hit_rate,
        num_computed_tokens=stats.num_computed_tokens,
        num_recomputed_tokens=stats.num_recomputed_tokens,
        num_preemptions=stats.num_preemptions,
        num_steps=stats.num_steps,
        block_size=stats.block_size,
        num_blocks=num_blocks,
        pool_reason=pool_reason,
        peak_used_blocks=stats.peak_used_blocks,
        internal_fragmentation=stats.internal_fragmentation,
        peak_internal_fragmentation=stats.peak_internal_fragmentation,
        seconds=seconds,
        environment=environment,
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole if whole else None)


def _rate(tokens_per_second: float | None) -> str:
    return "-" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"
