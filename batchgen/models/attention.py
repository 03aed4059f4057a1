"""The bridge from a stock transformers model to the attention backends: one function, registered once.

transformers calls it with the attention module first; the module carries a handle to its layer's KV cache and to the
running step, because some families drop keyword arguments on the way. No mask function is registered: without one,
transformers builds no mask, and the backend applies causality and sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from batchgen_kernels import AttentionBackend, AttentionOptions, AttentionStep, LayerCache, copy_blocks

IMPLEMENTATION = "batchgen"
_HANDLE = "_batchgen_attend"

# The handle of an attention module: (module, query, key, value, keywords) -> output, tensors [T, heads, head_size]
Attend = Callable[[nn.Module, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]


def batchgen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **keywords: Any
) -> tuple[Tensor, None]:
    """query [1, heads, T, head_size], key and value [1, kv_heads, T, head_size] -> [1, T, heads, value_head_size]."""
    assert attention_mask is None, "transformers built a mask although no mask function is registered"
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend_step(module, query, key, value, keywords)[None], None


def attend_step(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> Tensor:
    """Call the handle of `module` with the step's tokens in the shapes of `Attend`."""
    attend: Attend = getattr(module, _HANDLE)
    return attend(module, query, key, value, keywords)


AttentionInterface.register(IMPLEMENTATION, batchgen_attention)


def install(model: PreTrainedModel, modules: Iterable[nn.Module], attend: Callable[[int], Attend]) -> None:
    """Give each of the attention `modules` of `model` its handle; `attend(i)` returns the handle of the i-th."""
    for layer, module in enumerate(modules):
        setattr(module, _HANDLE, attend(layer))
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            # transformers looks for padding in every forward, which synchronises with the device; there is none here.
            module.warn_if_padding_and_no_attention_mask = _no_padding  # type: ignore[method-assign]


def _no_padding(*_: object) -> None:
    """Replace transformers' check for padding by nothing."""


def options_of(module: nn.Module, keywords: dict[str, Any]) -> AttentionOptions:
    """Return the keyword arguments of the model's attention call as options of the contract."""
    scale = keywords.get("scaling")
    return AttentionOptions(
        scale=float(scale) if scale is not None else float(module.head_dim) ** -0.5,  # type: ignore[arg-type]
        sliding_window=keywords.get("sliding_window"),
        soft_cap=keywords.get("softcap"),
        sinks=keywords.get("s_aux"),
    )


@dataclass(slots=True)
class StepAttention:
    """The attention of the running step, shared by the handles of all layers."""

    backend: AttentionBackend
    caches: list[LayerCache]
    prepared: Any = None  # what the backend prepared for the running step
    repeated: Tensor | None = None  # tokens of the step whose K and V are written to a second slot

    def copy(self, copies: Tensor) -> None:
        """Copy blocks in all layers; `copies` [2, C] holds the ids of the sources, then of the targets."""
        if copies.numel():
            for cache in self.caches:
                copy_blocks(cache, *copies)

    def begin(self, step: AttentionStep) -> None:
        """Prepare `step`; call this once before its forward."""
        self.begin_prepared(self.backend.prepare(step), step.repeated)

    def begin_prepared(self, prepared: Any, repeated: Tensor | None = None) -> None:
        """Begin a step that the backend has already prepared."""
        self.prepared, self.repeated = prepared, repeated

    def layer(self, index: int) -> Attend:
        """Return the handle of the attention module of layer `index`."""
        cache = self.caches[index]

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> Tensor:
            if self.repeated is not None:
                key, value = (torch.cat([tensor, tensor[self.repeated]]) for tensor in (key, value))
            return self.backend.attend(query, key, value, cache, self.prepared, options_of(module, keywords))

        return attend
