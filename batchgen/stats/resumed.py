"""Earlier sessions of a run: the sums over their committed rows, and the work they did. Knows figures only.

A row counts in the session that commits it, so every figure of prompts and outputs is exact, also after a kill. Work
(steps, computed tokens, seconds) is saved at every commit; after a kill, the work since the last commit is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from batchgen.request_output import RequestOutput
from batchgen.stats.counters import GroupStats, RunStats
from batchgen.stats.prompt_tokens import PromptTokens

_NUM_CAUSES = len(fields(PromptTokens))
_NOT_WORK = {"block_size", "max_model_len", "num_output_tokens", "num_samples"}


@dataclass(slots=True)
class CommittedRows:
    """Sums over the committed rows whose origin is known: those that an earlier session of this run generated."""

    num_rows: int = 0
    num_samples: int = 0
    prompt: PromptTokens = field(default_factory=PromptTokens)
    hit_ceiling: int = 0
    num_unique_tokens: int = 0
    num_output_tokens: int = 0

    def observe(self, output: RequestOutput) -> None:
        """Count one sample of a committed row."""
        if output.origin is None:
            return
        origin = output.origin
        self.num_samples += 1
        self.num_output_tokens += output.completion_tokens or 0
        if output.sample_index == 0:
            self.num_rows += 1
            self.prompt += PromptTokens(*origin[:_NUM_CAUSES])
            self.hit_ceiling += origin[-2]
            self.num_unique_tokens += origin[-1]

    def add_to(self, stats: RunStats) -> None:
        """Add these sums to a session's counters. Prefix groups hold only the session's own rows, so none of these."""
        if self.num_rows:
            stats.prompt += self.prompt
            stats.num_output_tokens += self.num_output_tokens
            stats.num_samples += self.num_samples
            stats.groups[None] = GroupStats(self.num_rows, self.prompt, self.num_output_tokens)


def origin_values(prompt: PromptTokens, hit_ceiling: int, num_unique_tokens: int) -> list[int]:
    """Return the values that the journal keeps with a row, so that `CommittedRows` can count it."""
    return [*asdict(prompt).values(), hit_ceiling, num_unique_tokens]


def work_of(stats: RunStats) -> dict[str, float]:
    """Return the counters of steps, by name."""
    values = {each.name: getattr(stats, each.name) for each in fields(stats) if each.name not in _NOT_WORK}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def add_work(stats: RunStats, work: Mapping[str, float]) -> None:
    """Add the counters of steps of earlier sessions; of a peak the higher value is kept."""
    for name, value in work.items():
        now = getattr(stats, name)
        setattr(stats, name, max(now or 0, value) if name.startswith("peak_") else now + value)
