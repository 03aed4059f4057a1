"""The bridge from a stock transformers model to the attention backends: one function, registered once.

transformers calls it with the attention module first; the module carries a handle to its layer's KV cache and to the
step being run, because some families drop keywords on the way. No mask function is registered: without one
transformers makes no mask, and causality and windows are the backend's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from batchgen_kernels import (
    AttentionBackend,
    AttentionOptions,
    AttentionStep,
    Backend,
    BlockGroup,
    CpuBackend,
    LayerCache,
    PreparedForReplay,
    ReferenceBackend,
    ReplayBackend,
    copy_blocks,
)

__all__ = [
    "IMPLEMENTATION",
    "AttentionBackend",
    "AttentionStep",
    "Backend",
    "BlockGroup",
    "PreparedForReplay",
    "ReplayBackend",
    "StepAttention",
    "install",
    "make_backend",
]

IMPLEMENTATION = "batchgen"
_HANDLE = "_batchgen_attend"


MAX_TRITON_HEAD_SIZE = 256  # for which the launch table has parameters


def has_triton() -> bool:
    """Whether Triton is installed; there are builds for Linux only."""
    return find_spec("triton") is not None


def is_triton_interpreted() -> bool:
    """Whether its kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _triton_backend() -> Backend:
    from batchgen_kernels.triton import TritonBackend  # imports triton

    return TritonBackend()


# engine.attention -> backend
_BACKENDS: dict[str, Callable[[], Backend]] = {
    "torch": ReferenceBackend,
    "cpu": CpuBackend,
    "triton": _triton_backend,
}

# What an attention module is replaced by: (module, query, key, value, keywords) -> output, all [T, heads, head_size]
Attend = Callable[[nn.Module, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]


def make_backend(name: str) -> Backend:
    """The backend of a resolved `engine.attention`: torch | cpu | triton."""
    return _BACKENDS[name]()


def batchgen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **keywords: Any
) -> tuple[Tensor, None]:
    """query [1, heads, T, head_size], key and value [1, kv_heads, T, head_size] -> [1, T, heads, value_head_size]."""
    assert attention_mask is None, "a mask was made although no mask function is registered"
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend_step(module, query, key, value, keywords)[None], None


def attend_step(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> Tensor:
    """The handle of `module`, by a layer that has the step's tokens as the backends want them."""
    attend: Attend = getattr(module, _HANDLE)
    return attend(module, query, key, value, keywords)


AttentionInterface.register(IMPLEMENTATION, batchgen_attention)


def install(model: PreTrainedModel, modules: Iterable[nn.Module], attend: Callable[[int], Attend]) -> None:
    """Give every attention module of `model` its handle; `attend(i)` makes the one of the i-th."""
    for layer, module in enumerate(modules):
        setattr(module, _HANDLE, attend(layer))
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            # It looks for padding in every forward to warn about it, which waits for the device; we never pad.
            module.warn_if_padding_and_no_attention_mask = _no_padding  # type: ignore[method-assign]


def _no_padding(*_: object) -> None:
    """Stands in for transformers' check."""


def options_of(module: nn.Module, keywords: dict[str, Any]) -> AttentionOptions:
    """What the model passed to its attention call, in the words of the contract."""
    scale = keywords.get("scaling")
    return AttentionOptions(
        scale=float(scale) if scale is not None else float(module.head_dim) ** -0.5,  # type: ignore[arg-type]
        sliding_window=keywords.get("sliding_window"),
        soft_cap=keywords.get("softcap"),
        sinks=keywords.get("s_aux"),
    )


@dataclass(slots=True)
class StepAttention:
    """The attention of the step being run, shared by the handles of all layers: `prepared` is what they attend with."""

    backend: AttentionBackend
    caches: list[LayerCache]
    prepared: Any = None
    repeated: Tensor | None = None  # tokens of the step whose K and V go to a second slot

    def copy(self, copies: Tensor) -> None:
        """Copy blocks [2, C], from where and to where, in all layers."""
        if copies.numel():
            for cache in self.caches:
                copy_blocks(cache, *copies)

    def begin(self, step: AttentionStep) -> None:
        """Called once before the forward of a step."""
        self.begin_prepared(self.backend.prepare(step), step.repeated)

    def begin_prepared(self, prepared: Any, repeated: Tensor | None = None) -> None:
        """The same for a step that the backend has prepared."""
        self.prepared, self.repeated = prepared, repeated

    def layer(self, index: int) -> Attend:
        """The handle of one attention module."""
        cache = self.caches[index]

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> Tensor:
            if self.repeated is not None:
                key, value = (torch.cat([tensor, tensor[self.repeated]]) for tensor in (key, value))
            return self.backend.attend(query, key, value, cache, self.prepared, options_of(module, keywords))

        return attend
