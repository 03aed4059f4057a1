"""The roofline of a run on this machine: its limits, measured, and the least time of the steps in a run's tables.

Knows which columns of `stats/steps.parquet` and `completions/` say what a step computed; the formula is that of
`scripts/roofline.py`. Knows nothing of how long anything took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig

from batchgen.spec.load import Job
from batchgen.stats.report import RunReport
from scripts.roofline import Limits, ModelSize, StepWork, attention_seconds, least_seconds

_COPY_BYTES = 256 << 20
_LIMIT_SECONDS = 2.0
_ITEM_BYTES = 2  # the workloads compute in bfloat16


def measure_limits() -> Limits:
    """Measure bfloat16 products of a prefill step's size, and copies of 256 MB.

    The best of many tries counts, since other work on the machine only makes them slower.
    """
    left, right = torch.rand(1024, 1536).bfloat16(), torch.rand(1536, 1536).bfloat16()
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8).random_(0, 255)
    target = torch.empty_like(source)
    product = _best(lambda: left @ right)
    copy = _best(lambda: target.copy_(source))
    return Limits(2 * left.shape[0] * right.numel() / product, 2 * _COPY_BYTES / copy)


def _best(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest try."""
    deadline, best = time.perf_counter() + _LIMIT_SECONDS, float("inf")
    while time.perf_counter() < deadline:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def model_size(job: Job) -> ModelSize:
    """Return the sizes of a job's model, from its config."""
    path = Path(job.spec.model.path)
    if path.suffix == ".gguf":
        return ModelSize.of(AutoConfig.from_pretrained(path.parent, gguf_file=path.name), _ITEM_BYTES)
    return ModelSize.of(AutoConfig.from_pretrained(path), _ITEM_BYTES)


def run_least_seconds(report: RunReport, out: Path, size: ModelSize, limits: Limits) -> float:
    """Return the least time of all steps of a run, from the tables in its output folder."""
    steps = pq.read_table(out / "stats/steps.parquet")
    assert steps.num_rows == report.num_steps, "not every step is in the table"
    in_steps = sum(least_seconds(_step_work(step, report.block_size), size, limits) for step in steps.to_pylist())
    return in_steps + attention_seconds(_prefill_pairs(pq.read_table(out / "completions")), size, limits)


def _step_work(step: dict[str, int], block_size: int) -> StepWork:
    """Return the work of a step without the attention of prefill, which the table of steps does not have."""
    decoding = min(step["num_decode_tokens"] / max(step["num_running"], 1), 1.0)  # share of the rows that decode
    return StepWork(
        num_tokens=step["num_prefill_tokens"] + step["num_decode_tokens"],
        num_sampled=step["num_sampled_tokens"],
        decode_pairs=step["num_stored_tokens"] * decoding,
        decode_kv_tokens=step["num_used_blocks"] * block_size * decoding,
        prefill_pairs=0,
    )


def _prefill_pairs(completions: pa.Table) -> float:
    """Return how many query-key pairs the prompts took: each computed token with itself and all before it."""
    rows = completions.filter(pc.equal(completions["sample_index"], 0))
    cached = rows["cached_tokens"].to_numpy().astype(float)
    computed = rows["prompt_tokens"].to_numpy() - cached
    return float((computed * cached + computed * (computed + 1) / 2).sum())
