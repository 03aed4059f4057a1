"""Attention over a paged KV pool, and sampling: one contract each, several backends. Imports nothing of `batchgen`.

ReferenceBackend   plain torch, against which the others are tested
CpuBackend         numba kernels that read the shared blocks of a group once for all its rows
TritonBackend      Triton kernels for a GPU, in `batchgen_kernels.triton`, since importing it imports triton
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
