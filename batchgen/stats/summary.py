"""A run in sentences: what was achieved beside what was possible. Pure, on a report."""

from __future__ import annotations

from collections.abc import Iterator

from batchgen.stats.counters import ratio
from batchgen.stats.report import RunReport
from batchgen.stats.words import count, duration, percent, rate


def summary(report: RunReport, *, prefix_cache: bool) -> list[str]:
    """The first things to know. `prefix_cache`: whether rows were allowed to share blocks."""
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
        yield "No prompt token was reused: engine.prefix_cache was false."
    elif not report.hit_ceiling:
        yield f"No prompt token could be reused: no two prompts have a block of {report.block_size} tokens in common."
    elif report.num_hit_tokens == report.hit_ceiling:
        yield f"{hits} were reused: all that {at_size}."
    else:
        yield f"{hits} were reused, {percent(report.hit_efficiency)} of the {report.hit_ceiling:,} that {at_size}."
    if report.num_copied_tokens:
        yield f"{report.num_copied_tokens:,} more were copied from blocks of which rows share the beginning."
    num_found = report.num_hit_tokens + report.num_copied_tokens
    if num_found and report.num_prefill_tokens:
        saved = num_found * report.seconds["prefill"] / report.num_prefill_tokens
        yield f"At the rate of this run's prefill, computing them again would have taken {duration(saved)} more."


def _speed(report: RunReport) -> Iterator[str]:
    if report.num_output_tokens:
        yield (
            f"{count(report.num_output_tokens, 'token')} were generated, {rate(report.output_tokens_per_second)}; with "
            f"the prompts, {rate(report.computed_tokens_per_second)} were computed."
        )


def _memory(report: RunReport) -> Iterator[str]:
    if report.internal_fragmentation is not None:
        yield (
            f"At most {report.peak_used_blocks:,} of {count(report.num_blocks, 'KV block')} were held by running rows. "
            f"{percent(report.internal_fragmentation)} of the slots held were empty, "
            f"{report.empty_slots_per_row or 0:.1f} a row; had every row reserved the context limit, "
            f"{percent(report.static_reservation_waste)} would have been."
        )
    if report.sharing:
        yield (
            f"Rows that share a prefix, and samples of one row, held their blocks together: {percent(report.sharing)} "
            "fewer than each for itself."
        )
