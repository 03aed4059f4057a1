"""What a machine and a model allow at best, for scripts/bench.py. Knows nothing of how long anything took.

Share of the roofline = sum over the steps that ran of
    max(products / matrix rate, weights / bandwidth) + max(decode attention / matrix rate, its KV / bandwidth)
    + prefill attention / matrix rate
over the time that they took. KV that several rows share is read once. The limits are the best of many bfloat16 products
of a prefill step's size, and of many copies of 256 MB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig

from batchgen.spec.load import Job
from batchgen.stats.report import RunReport

_COPY_BYTES = 256 << 20
_LIMIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do at best."""

    flops: float  # a second, in bfloat16 products
    bandwidth: float  # bytes a second, read and written by a copy


@dataclass(frozen=True, slots=True)
class Body:
    """The model's sizes, as far as its floor is made of them."""

    layer_weights: int
    head_weights: int
    num_layers: int
    query_size: int  # heads x head size
    kv_size: int  # elements of K and V of a token in a layer
    item_bytes: int

    @classmethod
    def of(cls, job: Job) -> Body:
        """Of a Llama-like model, from its config; the KV and the weights in bfloat16."""
        path = Path(job.spec.model.path)
        is_gguf = path.suffix == ".gguf"
        config = (
            AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            if is_gguf
            else AutoConfig.from_pretrained(path)
        )
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        head_size = getattr(config, "head_dim", None) or hidden // heads
        attention = hidden * head_size * 2 * (heads + kv_heads)
        layer = attention + 3 * hidden * config.intermediate_size
        layers = config.num_hidden_layers
        return cls(layer * layers, hidden * config.vocab_size, layers, heads * head_size, 2 * kv_heads * head_size, 2)


def measure_limits() -> Limits:
    """The best of many tries, since other work on the machine only makes them slower."""
    left, right = torch.rand(1024, 1536).bfloat16(), torch.rand(1536, 1536).bfloat16()
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8).random_(0, 255)
    target = torch.empty_like(source)
    product = _best(lambda: left @ right)
    copy = _best(lambda: target.copy_(source))
    return Limits(2 * left.shape[0] * right.numel() / product, 2 * _COPY_BYTES / copy)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest try."""
    deadline, best = time.perf_counter() + _LIMIT_SECONDS, float("inf")
    while time.perf_counter() < deadline:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def floor_seconds(report: RunReport, out: Path, body: Body, limits: Limits) -> float:
    """The least time for the steps that ran; see the top of this file."""
    steps = pq.read_table(out / "stats/steps.parquet")
    assert steps.num_rows == report.num_steps, "not every step is in the table"
    return sum(_step_floor(step, report.block_size, body, limits) for step in steps.to_pylist()) + _prefill_floor(
        pq.read_table(out / "completions"), body, limits
    )


def _step_floor(step: dict[str, float], block_size: int, body: Body, limits: Limits) -> float:
    tokens = step["num_prefill_tokens"] + step["num_decode_tokens"]
    flops = 2 * body.layer_weights * tokens + 2 * body.head_weights * step["num_sampled_tokens"]
    weights = (body.layer_weights + body.head_weights) * body.item_bytes
    decoding = min(step["num_decode_tokens"] / max(step["num_running"], 1), 1.0)
    attention = 4 * body.num_layers * body.query_size * step["num_stored_tokens"] * decoding
    kv_bytes = step["num_used_blocks"] * block_size * body.kv_size * body.num_layers * body.item_bytes * decoding
    return max(flops / limits.flops, weights / limits.bandwidth) + max(
        attention / limits.flops, kv_bytes / limits.bandwidth
    )


def _prefill_floor(rows: pa.Table, body: Body, limits: Limits) -> float:
    """Each computed prompt token against those before it."""
    rows = rows.filter(pc.equal(rows["sample_index"], 0))
    cached = rows["cached_tokens"].to_numpy().astype(float)
    computed = rows["prompt_tokens"].to_numpy() - cached
    pairs = (computed * cached + computed * (computed + 1) / 2).sum()
    return float(4 * body.num_layers * body.query_size * pairs / limits.flops)
