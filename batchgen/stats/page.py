"""The page of a run: `report.html`, one file that needs no network and no script. Knows what is shown, and where."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.stats import plots
from batchgen.stats.artifact import RunArtifact
from batchgen.stats.diagnosis import NONE
from batchgen.stats.report import CEILING_BLOCK_SIZES, RunReport
from batchgen.stats.summary import summary
from batchgen.stats.words import duration, percent, unbroken

_MOST_GROUPS = 20

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a whole."""

    name: str
    figure: str
    share: float  # of the whole, 0 to 1
    meaning: str = ""


def render_page(artifact: RunArtifact) -> str:
    """The HTML of `report.html`. Without matplotlib it and the log say what adds the plots."""
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


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "duration": duration, "number": "{:,}".format, "unbroken": unbroken}
    return environment.from_string((files("batchgen.stats") / "report.html.jinja").read_text(encoding="utf-8"))


_PARTS = {
    "inspect": "model and settings looked at",
    "tokenise": "rows read, rendered and tokenised",
    "load": "weights read",
    "plan": "rows ordered by prefix",
    "prefill": "prompts computed",
    "decode": "completions computed",
    "rest of the run": "everything between the steps",
    "write": "rows put back into input order",
    "the rest": "",
}


def _time(report: RunReport) -> Iterator[Bar]:
    """The parts of the whole time; a step's time is shared out between prefill and decode by its tokens."""
    seconds, total = dict(report.seconds), report.seconds["total"]
    run = seconds.pop("run", 0.0)
    del seconds["total"]
    seconds["rest of the run"] = max(run - seconds["prefill"] - seconds["decode"], 0.0)
    seconds["the rest"] = max(total - sum(seconds.values()), 0.0)
    for part, meaning in _PARTS.items():
        if part in seconds:
            yield Bar(part, duration(seconds[part]), seconds[part] / total, meaning)


_ORIGINS = {
    "num_hit_tokens": ("reused", "found in full blocks that another row had computed"),
    "num_copied_tokens": ("copied", "from the beginning of a block that another row goes on in another way"),
    "num_miss_first": ("first", "no row before had it"),
    "num_miss_tail": ("tail", "at the end of a prompt, in a block it does not fill"),
    "num_miss_last": ("last", "a prompt's last token must be computed, and so its block was"),
    "num_miss_evicted": ("evicted", "given away when the pool was full, and wanted again"),
    "num_miss_order": ("order", "a row before has it, and it was not there yet"),
    "num_miss_scored": ("scored", "a row before has it, but its logits were asked for (prompt_logprobs)"),
}


def _origins(report: RunReport) -> Iterator[Bar]:
    for field, (name, meaning) in _ORIGINS.items():
        tokens = getattr(report, field)
        yield Bar(name, f"{tokens:,}", tokens / max(report.num_prompt_tokens, 1), meaning)


def _ceilings(report: RunReport) -> list[Bar]:
    """What other block sizes would allow to reuse."""
    return [
        Bar(str(size), f"{report.ceilings[size]:,}", report.ceilings[size] / max(report.num_prompt_tokens, 1))
        for size in CEILING_BLOCK_SIZES
        if size in report.ceilings
    ]


def _groups(artifact: RunArtifact) -> list[dict[str, Any]]:
    """The largest groups, and last the rows in no group."""
    is_group = pc.is_valid(artifact.groups["group_number"])
    groups = artifact.groups.filter(is_group).sort_by([("num_prompt_tokens", "descending")])
    shown = pa.concat_tables([groups.slice(0, _MOST_GROUPS), artifact.groups.filter(pc.invert(is_group))])
    rows: list[dict[str, Any]] = shown.to_pylist()
    return rows


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A resolved value as text."""

    key: str
    value: str
    source: str


def _settings(job: Mapping[str, Any]) -> list[ShownSetting]:
    """Every value of the resolved job with its source."""
    leaves = [
        (f"{section}.{name}" if name else section, value)
        for section, values in job["job"].items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    return [
        ShownSetting(key, value if isinstance(value, str) else json.dumps(value), job["sources"].get(key, "default"))
        for key, value in leaves
    ]
