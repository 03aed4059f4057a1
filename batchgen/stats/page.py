"""The page of a run: `report.html`, one file that needs no network and no script, and the summary in sentences.

Knows what is shown and where. A pure function of the report, its tables and the resolved job.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.plan.plan import BLOCK_SIZES
from batchgen.stats import plots
from batchgen.stats.artifact import RunArtifact
from batchgen.stats.counters import ratio
from batchgen.stats.diagnosis import NONE
from batchgen.stats.format import count, duration, nonbreaking, percent, rate
from batchgen.stats.report import RunReport

_MOST_GROUPS = 20

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a whole, shown as a bar."""

    name: str
    figure: str  # as text, with its unit
    share: float  # of the whole, 0 to 1
    meaning: str = ""


def render_page(artifact: RunArtifact) -> str:
    """Return the HTML of `report.html`. Without matplotlib there are no plots; page and log say how to add them."""
    report, engine = artifact.report, artifact.job["job"]["engine"]
    has_plots = plots.can_plot()
    if not has_plots:
        log.info("report.html has no plots: pip install 'batchgen[report]' adds them")
    is_drawn = has_plots and artifact.steps.num_rows > 0
    return _template().render(
        report=report,
        title=_name(artifact.job["job"]["output"]["path"]),
        model=_name(artifact.job["job"]["model"]["path"]),
        summary=summary(report, prefix_cache=engine["prefix_cache"]),
        no_finding=NONE,
        time=list(_time(report)),
        origins=list(_origins(report)),
        ceilings=_ceilings(report),
        can_plot=has_plots,
        blocks_plot=plots.plot_blocks(artifact.steps, report.block_size) if is_drawn else None,
        rows_plot=plots.plot_rows(artifact.steps) if is_drawn else None,
        groups=_groups(artifact),
        num_groups_left_out=max(report.num_groups - _MOST_GROUPS, 0),
        settings=_settings(artifact.job),
    )


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "duration": duration, "number": "{:,}".format, "unbroken": nonbreaking}
    return environment.from_string((files("batchgen.stats") / "report.html.jinja").read_text(encoding="utf-8"))


_PARTS = {
    "inspect": "checking the model and the settings",
    "tokenise": "reading, rendering and tokenising the rows",
    "load": "reading the weights",
    "plan": "ordering the rows by prefix",
    "prefill": "computing the prompts",
    "decode": "computing the completions",
    "rest of the run": "everything between the steps",
    "write": "writing the completions in input order",
    "other": "",
}


def _time(report: RunReport) -> Iterator[Bar]:
    """Yield the parts of the total time; a step's time is divided by its prefill and decode tokens."""
    seconds, total = dict(report.seconds), report.seconds["total"]
    run = seconds.pop("run", 0.0)
    del seconds["total"]
    seconds["rest of the run"] = max(run - seconds["prefill"] - seconds["decode"], 0.0)
    seconds["other"] = max(total - sum(seconds.values()), 0.0)
    for part, meaning in _PARTS.items():
        if part in seconds:
            yield Bar(part, duration(seconds[part]), seconds[part] / total, meaning)


_ORIGINS = {
    "num_hit_tokens": ("reused", "found in full blocks that another row had computed"),
    "num_copied_tokens": ("copied", "from the first part of a block that another row fills with different tokens"),
    "num_miss_first": ("first", "computed: no earlier row has these tokens"),
    "num_miss_tail": ("tail", "computed: at the end of a prompt, in a block that the prompt does not fill"),
    "num_miss_last": ("last", "computed: the block was cached, but the prompt's last token needs its logits"),
    "num_miss_evicted": ("evicted", "computed: the block was cached before, but evicted when the pool was full"),
    "num_miss_order": ("order", "computed: an earlier row has these tokens, but had not computed them yet"),
    "num_miss_scored": ("scored", "computed: an earlier row has these tokens, but prompt_logprobs needs their logits"),
}


def _origins(report: RunReport) -> Iterator[Bar]:
    for field, (name, meaning) in _ORIGINS.items():
        tokens = getattr(report, field)
        yield Bar(name, f"{tokens:,}", tokens / max(report.num_prompt_tokens, 1), meaning)


def _ceilings(report: RunReport) -> list[Bar]:
    """Return the prompt tokens that could be reused with other block sizes."""
    return [
        Bar(str(size), f"{report.ceilings[size]:,}", report.ceilings[size] / max(report.num_prompt_tokens, 1))
        for size in BLOCK_SIZES
        if size in report.ceilings
    ]


def _groups(artifact: RunArtifact) -> list[dict[str, Any]]:
    """Return the largest groups, and last the rows that are in no group."""
    is_group = pc.is_valid(artifact.groups["group_number"])
    groups = artifact.groups.filter(is_group).sort_by([("num_prompt_tokens", "descending")])
    shown = pa.concat_tables([groups.slice(0, _MOST_GROUPS), artifact.groups.filter(pc.invert(is_group))])
    rows: list[dict[str, Any]] = shown.to_pylist()
    return rows


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A resolved value of the job, as text."""

    key: str
    value: str
    source: str


def _settings(job: Mapping[str, Any]) -> list[ShownSetting]:
    """Return every value of the resolved job with its source."""
    leaves = [
        (f"{section}.{name}" if name else section, value)
        for section, values in job["job"].items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    return [
        ShownSetting(key, value if isinstance(value, str) else json.dumps(value), job["sources"].get(key, "default"))
        for key, value in leaves
    ]


def summary(report: RunReport, *, prefix_cache: bool) -> list[str]:
    """Return the most important figures as sentences. `prefix_cache`: whether rows were allowed to share blocks."""
    return [*_rows(report), *_reuse(report, prefix_cache), *_speed(report), *_memory(report)]


def _rows(report: RunReport) -> Iterator[str]:
    failed = f"{report.num_failed:,} failed" if report.num_failed else "none failed"
    yield f"{count(report.num_rows, 'row')} in {duration(report.seconds['total'])}; {failed}."


def _reuse(report: RunReport, prefix_cache: bool) -> Iterator[str]:
    if not report.num_prompt_tokens:
        return
    share = percent(ratio(report.num_hit_tokens, report.num_prompt_tokens))
    hits = f"{report.num_hit_tokens:,} of {report.num_prompt_tokens:,} prompt tokens ({share})"
    at_size = f"this job's prompts allow at block size {report.block_size}"
    if not prefix_cache:
        yield "No prompt token was reused, because engine.prefix_cache was false."
    elif not report.hit_ceiling:
        yield f"No prompt token could be reused: no two prompts have a block of {report.block_size} tokens in common."
    elif report.num_hit_tokens == report.hit_ceiling:
        yield f"{hits} were reused, the most that {at_size}."
    else:
        yield f"{hits} were reused, {percent(report.hit_efficiency)} of the {report.hit_ceiling:,} that {at_size}."
    if report.num_copied_tokens:
        yield f"{report.num_copied_tokens:,} more were copied from partially shared blocks."
    num_found = report.num_hit_tokens + report.num_copied_tokens
    if num_found and report.num_prefill_tokens:
        saved = num_found * report.seconds["prefill"] / report.num_prefill_tokens
        yield f"At this run's prefill rate, computing them would have taken {duration(saved)} more."


def _speed(report: RunReport) -> Iterator[str]:
    if report.num_output_tokens:
        yield (
            f"{count(report.num_output_tokens, 'token')} were generated at {rate(report.output_tokens_per_second)}; "
            f"prompt and output tokens together were computed at {rate(report.computed_tokens_per_second)}."
        )


def _memory(report: RunReport) -> Iterator[str]:
    if report.internal_fragmentation is not None:
        yield (
            f"Running rows held at most {report.peak_used_blocks:,} of {count(report.num_blocks, 'KV block')}. "
            f"{percent(report.internal_fragmentation)} of the held slots were empty, "
            f"{report.empty_slots_per_row or 0:.1f} for each row; if every row had reserved the context limit, "
            f"{percent(report.static_reservation_waste)} would have been empty."
        )
    if report.sharing:
        yield (
            f"Rows with a common prefix and samples of one row shared blocks, which saved {percent(report.sharing)} of "
            "them."
        )
