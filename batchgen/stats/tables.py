"""The three tables of `stats/` as Arrow tables. Knows columns and their types; docs/report.md defines their meaning.

Columns and types are the same in every run, so that the files of many nights can be read as one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa

from batchgen.plan.plan import BLOCK_SIZES
from batchgen.stats.counters import GroupStats, RowTime, StepLog, StepStats, ratio
from batchgen.stats.diagnosis import Finding
from batchgen.stats.prompt_tokens import PromptTokens
from batchgen.stats.report import ENVIRONMENT, SECONDS, RunReport

_GROUPS_AT_ONCE = 10_000  # groups converted at a time: there may be millions, and rows as dictionaries are large


class GroupPrefix(NamedTuple):
    """What the plan knows of a prefix group."""

    first_row_index: int  # its row that comes first in the input
    num_tokens: int  # length of the prefix that all its rows share, in full blocks


class _Flattened(NamedTuple):
    """A mapping of the report that becomes one column for each key."""

    prefix: str
    keys: Sequence[Any]
    type: pa.DataType


_FLATTENED = {
    "ceilings": _Flattened("hit_ceiling", BLOCK_SIZES, pa.int64()),
    "seconds": _Flattened("seconds", SECONDS, pa.float64()),
    "environment": _Flattened("environment", ENVIRONMENT, pa.string()),
}
_ARROW_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    float | None: pa.float64(),
    str: pa.string(),
}


def _struct(noun: type) -> pa.DataType:
    return pa.struct([(name, _ARROW_TYPES[hint]) for name, hint in get_type_hints(noun).items()])


_NESTED = {
    "errors": pa.map_(pa.string(), pa.int64()),
    "slowest_rows": pa.list_(_struct(RowTime)),
    "findings": pa.list_(_struct(Finding)),
}


def _job_columns() -> Iterable[tuple[str, pa.DataType]]:
    for name, hint in get_type_hints(RunReport).items():
        if name in _FLATTENED:
            yield from ((f"{_FLATTENED[name].prefix}_{key}", _FLATTENED[name].type) for key in _FLATTENED[name].keys)
        else:
            yield name, _NESTED[name] if name in _NESTED else _ARROW_TYPES[hint]


JOB = pa.schema(list(_job_columns()))
GROUPS = pa.schema(
    {
        "group_number": pa.int32(),
        "first_row_index": pa.int64(),
        "num_rows": pa.int64(),
        "num_prefix_tokens": pa.int64(),
        "num_prompt_tokens": pa.int64(),
        "num_hit_tokens": pa.int64(),
        "num_copied_tokens": pa.int64(),
        **{f"num_miss_{cause}": pa.int64() for cause in PromptTokens().misses},
        "hit_rate": pa.float64(),
        "num_output_tokens": pa.int64(),
    }
)
STEPS = pa.schema(
    {
        "step": pa.int64(),
        "ended_at_seconds": pa.float64(),
        **{name: _ARROW_TYPES[hint] for name, hint in get_type_hints(StepStats).items()},
    }
)


def job_table(report: RunReport) -> pa.Table:
    """Return a table with one row, which has every field of the report."""
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    for name, (prefix, keys, _) in _FLATTENED.items():
        mapping = values.pop(name)
        values |= {f"{prefix}_{key}": mapping.get(key) for key in keys}
    values["errors"] = list(report.errors.items())
    values["slowest_rows"] = [asdict(row) for row in report.slowest_rows]
    values["findings"] = [asdict(finding) for finding in report.findings]
    return pa.Table.from_pylist([values], schema=JOB)


def groups_table(groups: Mapping[int | None, GroupStats], prefix_of: Callable[[int], GroupPrefix]) -> pa.Table:
    """Return a row for every group that ran, in the order of their numbers, and last one for the rows in no group."""
    numbers = sorted(groups, key=lambda number: (number is None, number))
    batches = [
        pa.RecordBatch.from_pylist([_group_row(n, groups[n], prefix_of) for n in numbers[start:stop]], GROUPS)
        for start, stop in pairwise([*range(0, len(numbers), _GROUPS_AT_ONCE), len(numbers)])
    ]
    return pa.Table.from_batches(batches, GROUPS)


def _group_row(number: int | None, group: GroupStats, prefix_of: Callable[[int], GroupPrefix]) -> dict[str, Any]:
    prefix, prompt = None if number is None else prefix_of(number), group.prompt
    return {
        "group_number": number,
        "first_row_index": prefix and prefix.first_row_index,
        "num_prefix_tokens": prefix and prefix.num_tokens,
        "num_rows": group.num_rows,
        "num_prompt_tokens": prompt.total,
        "num_hit_tokens": prompt.hit,
        "num_copied_tokens": prompt.copied,
        **{f"num_miss_{cause}": tokens for cause, tokens in prompt.misses.items()},
        "hit_rate": ratio(prompt.found, prompt.total),
        "num_output_tokens": group.num_output_tokens,
    }


def steps_table(log: StepLog) -> pa.Table:
    """Return one row for each sampled step."""
    rows = [{"step": number, "ended_at_seconds": end, **asdict(step)} for number, end, step in log.samples]
    return pa.Table.from_pylist(rows, schema=STEPS)
