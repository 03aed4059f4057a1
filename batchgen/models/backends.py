"""What is compiled at its first use on a machine, made ready while the weights load: the kernels of the CPU backend.

The contract of token choice, for the engine: only this room knows the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from batchgen.models.probe import AttentionLayer
from batchgen_kernels import Backend, CpuBackend, SampledTokens, SamplingBackend, SamplingRows


@contextmanager
def warm_up(backend: Backend, layer: AttentionLayer, dtype: torch.dtype) -> Iterator[None]:
    """Have the kernels for such layers compiled, or read from disk, beside what is done inside.

    LLVM and torch both let go of Python's lock, so a second core has something to do.
    """
    if not isinstance(backend, CpuBackend):
        yield
        return
    with ThreadPoolExecutor(1, "kernels") as thread:
        ready = thread.submit(backend.warm_up, layer.num_heads, layer.num_kv_heads, layer.key_head_size, dtype)
        yield
        ready.result()


__all__ = ["SampledTokens", "SamplingBackend", "SamplingRows"]
