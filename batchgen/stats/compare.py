"""Compare: the reports of several runs side by side, oldest first, for trends over nights. A pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from batchgen.stats.format import percent
from batchgen.stats.report import ENVIRONMENT, SECONDS, RunReport

CHANGE = 0.05  # of the larger figure; two runs of the same job differ by less

Figure = float | str | None

_number, _decimal = "{:,}".format, "{:,.1f}".format

_FIGURES: dict[str, Callable[[Any], str]] = {  # field of a report -> its format, in the order shown
    **dict.fromkeys(("num_rows", "num_ok", "num_failed", "num_prompt_tokens", "num_output_tokens"), _number),
    **dict.fromkeys(("hit_rate", "hit_ceiling_rate", "hit_efficiency"), percent),
    **dict.fromkeys(("num_miss_evicted", "num_miss_order", "num_recomputed_tokens", "num_groups"), _number),
    **dict.fromkeys(("block_size", "num_blocks", "peak_used_blocks"), _number),
    **dict.fromkeys(("internal_fragmentation", "peak_internal_fragmentation", "sharing"), percent),
    "empty_slots_per_row": _decimal,
    **dict.fromkeys(("num_steps", "num_waiting_steps", "num_preemptions"), _number),
    "held_back_share": percent,
    "mean_running": _decimal,
    **dict.fromkeys(("output_tokens_per_second", "prompt_tokens_per_second", "computed_tokens_per_second"), _decimal),
    "tail_share": percent,
}


def compare(runs: Mapping[str, RunReport]) -> str:
    """Return a table with one column for each run and one line for each figure.

    `runs` maps a heading to a report. A figure that differs by more than 5 % from the figure to its left gets a star.
    """
    ordered = dict(sorted(runs.items(), key=lambda run: run[1].started))
    lines = [["", *ordered]]
    for name, show in _FIGURES.items():
        lines.append(_line(name, [getattr(report, name) for report in ordered.values()], show))
    for part in SECONDS:
        lines.append(_line(f"seconds {part}", [report.seconds.get(part) for report in ordered.values()], _decimal))
    for name, texts in _texts(list(ordered.values())).items():
        lines.append(_line(name, texts, str))
    return _aligned(lines) + f"\n* differs by more than {CHANGE:.0%} from the run to its left"


def _texts(reports: list[RunReport]) -> dict[str, list[Figure]]:
    return {
        "started": [report.started for report in reports],
        "visiting_order": [report.visiting_order for report in reports],
        "diagnosis": [", ".join(finding.kind for finding in report.findings) or "none" for report in reports],
        **{key: [report.environment.get(key) for report in reports] for key in ENVIRONMENT},
    }


def _line(name: str, values: list[Figure], show: Callable[[Any], str]) -> list[str]:
    is_marked = [False, *(_differ(a, b) and name != "started" for a, b in pairwise(values))]
    cells = ["-" if value is None else show(value) for value in values]
    return [name, *(f"{cell} {'*' if marked else ' '}" for cell, marked in zip(cells, is_marked, strict=True))]


def _differ(a: Figure, b: Figure) -> bool:
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a != b
    return abs(a - b) > CHANGE * max(abs(a), abs(b))


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in lines
    )
