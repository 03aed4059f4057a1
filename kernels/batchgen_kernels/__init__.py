"""Attention over a paged KV pool, and token choice: one contract each, several backends. Imports nothing of `batchgen`.

reference   plain torch, the truth
cpu         torch operations that read a group's shared blocks once for all its rows
"""

from __future__ import annotations

from batchgen_kernels.contract import (
    AttentionBackend,
    AttentionOptions,
    AttentionStep,
    Backend,
    BlockGroup,
    LayerCache,
    PreparedForReplay,
    ReplayBackend,
    SampledTokens,
    SamplingBackend,
    SamplingRows,
    copy_blocks,
    write_kv,
)
from batchgen_kernels.cpu.backend import CpuBackend
from batchgen_kernels.reference import ReferenceBackend

__all__ = [
    "AttentionBackend",
    "AttentionOptions",
    "AttentionStep",
    "Backend",
    "BlockGroup",
    "CpuBackend",
    "LayerCache",
    "PreparedForReplay",
    "ReferenceBackend",
    "ReplayBackend",
    "SampledTokens",
    "SamplingBackend",
    "SamplingRows",
    "copy_blocks",
    "write_kv",
]
