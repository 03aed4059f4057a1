"""Backends for attention and sampling: which one runs a model on a device, and how its kernels are warmed up.

This module re-exports the kernel contract for the engine, since only this room imports `batchgen_kernels`. Knows
devices, dtypes and layer shapes; knows nothing of job files, requests or transformers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from batchgen.errors import ModelError
from batchgen.models.probe import AttentionLayer
from batchgen_kernels import (
    AttentionStep,
    Backend,
    BlockGroup,
    CpuBackend,
    PreparedForReplay,
    ReferenceBackend,
    ReplayBackend,
    SampledTokens,
    SamplingBackend,
    SamplingRows,
)

__all__ = [
    "AttentionStep",
    "Backend",
    "BlockGroup",
    "PreparedForReplay",
    "ReplayBackend",
    "SampledTokens",
    "SamplingBackend",
    "SamplingRows",
    "choose_backend",
    "make_backend",
    "warm_up",
]

log = logging.getLogger("batchgen")

MAX_TRITON_HEAD_SIZE = 256  # the largest head for which the launch table has parameters


def has_triton() -> bool:
    """Return whether Triton is installed; it is built for Linux only."""
    return find_spec("triton") is not None


def is_triton_interpreted() -> bool:
    """Return whether Triton kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose_backend(wanted: str, device: torch.device, dtype: torch.dtype, layers: Sequence[AttentionLayer]) -> str:
    """Return the backend that `engine.attention: wanted` resolves to: torch | cpu | triton.

    `auto` takes the fastest backend that can run such a model. Raises ModelError, beginning with the name, if another
    one is wanted that cannot run it.
    """
    if wanted == "auto":
        return "cpu" if device.type == "cpu" else "torch" if _why_no_triton(device, dtype, layers) else "triton"
    if wanted == "triton" and (reason := _why_no_triton(device, dtype, layers)):
        raise ModelError(f"triton {reason}")
    if wanted == "cpu" and device.type != "cpu":
        raise ModelError(f"cpu does not run on {device}; use auto or torch")
    return wanted


def _why_no_triton(device: torch.device, dtype: torch.dtype, layers: Sequence[AttentionLayer]) -> str | None:
    """Return why the Triton kernels cannot run this model here, as the rest of a sentence; None if they can."""
    if not has_triton():
        return "needs the package triton, which is not installed here; use auto or torch"
    if device.type == "cpu" and not is_triton_interpreted():
        return "runs on a GPU; use auto or cpu here, or set TRITON_INTERPRET=1 to debug its kernels"
    if device.type == "cpu" and dtype == torch.bfloat16:
        return "is computed wrongly in bfloat16 by Triton's interpreter; set model.dtype: float32"
    head_size = max(max(layer.key_head_size, layer.value_head_size) for layer in layers)
    if head_size > MAX_TRITON_HEAD_SIZE:
        return f"supports head sizes up to {MAX_TRITON_HEAD_SIZE}, but this model's is {head_size}; use auto or torch"
    return None


def _triton_backend() -> Backend:
    from batchgen_kernels.triton import TritonBackend  # imports triton

    return TritonBackend()


_NAME_TO_BACKEND: dict[str, Callable[[], Backend]] = {
    "torch": ReferenceBackend,
    "cpu": CpuBackend,
    "triton": _triton_backend,
}


def make_backend(name: str) -> Backend:
    """Return a new backend by the name that `choose_backend` returned."""
    return _NAME_TO_BACKEND[name]()


@contextmanager
def warm_up(backend: Backend, layer: AttentionLayer, dtype: torch.dtype) -> Iterator[None]:
    """Compile the CPU kernels for such layers, or read them from disk, in a thread beside the block.

    LLVM and torch both release the GIL, so this uses a second core. Other backends need no warm-up.
    """
    if not isinstance(backend, CpuBackend):
        yield
        return
    with ThreadPoolExecutor(1, "kernels") as thread:
        compiled = thread.submit(backend.warm_up, layer.num_heads, layer.num_kv_heads, layer.key_head_size, dtype)
        yield
        compiled.result()
    if backend.cache != backend.preferred_cache:
        kept = f"kept in {backend.cache}" if backend.cache else "compiled again by every run"
        log.info("the CPU kernels are %s, since %s cannot be used", kept, backend.preferred_cache)
