"""JobPlan: the figures of a job that are known before it runs, as JSON and as a table. Knows no model, no prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from batchgen.plan.groups import GroupSummary, Spread
from batchgen.stats.format import count, duration, percent, rate
from batchgen.units import format_gib

SCHEMA_VERSION = 1

_LARGEST_SHOWN = 5  # groups
_LOSS_SHOWN = 0.01  # of the prompt tokens of the pairs compared; below it a difference is chance


@dataclass(frozen=True, slots=True)
class BadKind:
    """The bad rows that have the same fault."""

    error: str  # of the first of them
    num_rows: int


@dataclass(frozen=True, slots=True)
class BlockSizeFigures:
    """What the job would reuse and waste at one block size."""

    block_size: int
    hit_ceiling: int  # prompt tokens
    tail_waste: int  # slots left empty in last blocks, over all rows, if each completion is as long as it may be


@dataclass(frozen=True, slots=True)
class Difference:
    """Where prompts that look shared diverge; see plan/first_difference.py."""

    token: int  # counted from 0
    num_compared: int  # pairs of rows
    num_pairs: int  # of those: diverge at this token and continue alike
    lost_tokens: int  # in these pairs
    rows: tuple[int, int]  # an example: two rows of the input, counted from 0
    before: str  # the text in front of the difference
    after: tuple[str, str]  # the text of each from the difference on


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory that the model and its KV cache need, and what is available. In bytes unless a name says otherwise."""

    device: str
    available: int
    memory_fraction: float
    weights: int
    steps: int  # activations and logits of the largest step
    block: int
    num_blocks_needed: int  # more are never used at once
    num_blocks: int | None  # of the pool; None: there is none, see `problem`
    pool_reason: str | None
    problem: str | None  # why the job cannot run here
    rows_at_once: int | None  # expected, on average; of rows with several samples each sample counts
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """The tokens to compute and the time that they take."""

    num_output_tokens: int
    output_source: str  # how the number was estimated
    num_computed_tokens: int  # prompt tokens without the hits, and the output
    tokens_per_second: float | None  # computed ones
    rate_source: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything that `batchgen plan` reports."""

    schema_version: int
    num_rows: int
    num_bad: int
    bad_rows: Sequence[BadKind]  # the first few faults
    max_errors: int | None  # more bad rows than this and a run stops
    num_samples: int  # of all rows that can run
    num_prompt_tokens: int
    num_unique_tokens: int  # that any engine must compute, block borders aside
    block_size: int
    hit_ceiling: int  # most prompt tokens that a run can reuse at this block size
    block_sizes: Sequence[BlockSizeFigures]
    groups: GroupSummary  # `first_row` of the largest ones is a row of the input, counted from 0
    difference: Difference | None
    memory: MemoryNeed
    time: TimeEstimate

    def to_json(self) -> str:
        """Return the plan as one JSON object."""
        values = asdict(self)
        for name in ("rows", "prefix_tokens"):
            values["groups"][name] = getattr(self.groups, name)._asdict()  # a Spread is a tuple, and would be a list
        return json.dumps(values, indent=2, allow_nan=False)

    def table(self) -> str:
        """Return the plan as a table for the terminal."""
        lines = [
            *_rows(self),
            *_tokens(self),
            *_block_sizes(self),
            *_groups(self.groups),
            *_difference(self),
            *_memory(self.memory),
            *_time(self.time),
        ]
        width = max(len(name) for name, _ in lines) + 2
        return "\n".join(f"{name:<{width}}{value}" for name, value in lines)


Lines = Iterator[tuple[str, str]]


def _rows(plan: JobPlan) -> Lines:
    yield "rows", f"{plan.num_rows:,}: {plan.num_rows - plan.num_bad:,} good, {plan.num_bad:,} bad"
    if plan.num_samples > plan.num_rows - plan.num_bad:
        yield "samples", f"{plan.num_samples:,} completions; the prompt of a row counts, and is computed, once"
    for kind in plan.bad_rows:
        yield "  bad", f"{kind.error} ({count(kind.num_rows, 'row')})"
    if plan.max_errors is not None and plan.num_bad > plan.max_errors:
        yield "  so", f"the run will stop: max_errors allows {count(plan.max_errors, 'bad row')}"


def _tokens(plan: JobPlan) -> Lines:
    total = plan.num_prompt_tokens
    yield (
        "prompt tokens",
        f"{total:,}, of them {plan.num_unique_tokens:,} unique ({_share(plan.num_unique_tokens, total)})",
    )
    yield (
        "hit ceiling",
        f"{plan.hit_ceiling:,} at block size {plan.block_size} ({_share(plan.hit_ceiling, total)} of prompt tokens)",
    )


def _block_sizes(plan: JobPlan) -> Lines:
    sizes = plan.block_sizes
    yield "block size", _columns([f"{size.block_size}" for size in sizes])
    yield "  hits", _columns([_share(size.hit_ceiling, plan.num_prompt_tokens) for size in sizes])
    num_good = max(plan.num_rows - plan.num_bad, 1)
    yield "  empty slots a row", _columns([f"{size.tail_waste / num_good:.1f}" for size in sizes])


def _groups(groups: GroupSummary) -> Lines:
    yield "prefix groups", f"{groups.num_groups:,} with {count(groups.num_rows, 'row')}"
    if groups.num_groups:
        yield "  rows of a group", _spread(groups.rows)
        yield "  shared tokens", _spread(groups.prefix_tokens)
    for group in groups.largest[:_LARGEST_SHOWN]:
        yield (
            "  large",
            f"{group.num_rows:,} rows share {group.prefix_tokens:,} tokens, first row {group.first_row + 1}",
        )


def _difference(plan: JobPlan) -> Lines:
    found = plan.difference
    num_good = plan.num_rows - plan.num_bad
    if found is None or found.lost_tokens * num_good < _LOSS_SHOWN * found.num_compared * plan.num_prompt_tokens:
        return
    yield (
        "not shared",
        f"{found.num_pairs:,} of {found.num_compared:,} pairs of prompts diverge at token {found.token} and continue "
        f"alike for {found.lost_tokens // found.num_pairs:,} tokens on average",
    )
    for row, after in zip(found.rows, found.after, strict=True):
        yield f"  row {row + 1}", f"{found.before!r} then {after!r}"
    yield "  so", "move what differs behind what is the same: nothing is shared after the first difference"


def _memory(memory: MemoryNeed) -> Lines:
    kv = memory.num_blocks_needed * memory.block
    yield (
        "peak memory",
        f"{format_gib(memory.weights)} weights + {format_gib(kv)} KV "
        f"({count(memory.num_blocks_needed, 'block')} at most) + {format_gib(memory.steps)} a step",
    )
    available = (
        f"{format_gib(memory.available * memory.memory_fraction)} of the {format_gib(memory.available)} available on "
        f"{memory.device} may be used (engine.memory_fraction {memory.memory_fraction:g})"
    )
    if memory.problem is not None or memory.num_blocks is None:
        yield "fits", f"no: {memory.problem}"
        return
    fits = "yes" if memory.num_blocks >= memory.num_blocks_needed else "not all of it"
    yield "fits", f"{fits}: {available}; the pool gets {count(memory.num_blocks, 'block')} ({memory.pool_reason})"
    yield "rows at once", f"about {memory.rows_at_once:,}, at most {memory.max_num_seqs:,}"


def _time(time: TimeEstimate) -> Lines:
    yield (
        "to compute",
        f"{time.num_computed_tokens:,} tokens, of them {time.num_output_tokens:,} of output ({time.output_source})",
    )
    if time.seconds is None:
        yield "time", "not known without a rate: give --tokens-per-second, or plan again after a run of this job"
    else:
        yield "time", f"about {duration(time.seconds)} at {rate(time.tokens_per_second)} ({time.rate_source})"


def _spread(spread: Spread) -> str:
    return f"{spread.min:,} to {spread.max:,}, median {spread.median:,}"


def _columns(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>9}" for cell in cells)


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)
