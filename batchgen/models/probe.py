"""The attention calls of a model, recorded while one token runs through it without weights.

A forward on torch's meta device calls every attention module once with the shapes it will always have. That gives the
layout of the KV cache and shows, before any weight is read, what the engine cannot run exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from batchgen.errors import ModelError
from batchgen.models.attention import Attend, install, options_of

# Arguments that backends support or that do not change the attention; any other one that is set may change it.
_SUPPORTED_ARGUMENTS = {
    "scaling",
    "sliding_window",
    "softcap",
    "s_aux",
    "dropout",
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "cache_position",
    "is_causal",
}


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The shapes of one attention module."""

    module: str  # its name in the model
    num_heads: int
    num_kv_heads: int
    key_head_size: int
    value_head_size: int
    sliding_window: int | None

    @property
    def elements_per_token(self) -> int:
        """Return the number of KV elements that a token stores in this layer."""
        return self.num_kv_heads * (self.key_head_size + self.value_head_size)


def probe_attention(model: PreTrainedModel) -> list[AttentionLayer]:
    """Return the attention layers of a meta-device model built with our attention, in the order of their calls.

    Raises ModelError if the model attends in a way that the contract does not support.
    """
    layers: list[AttentionLayer] = []
    names = {module: name for name, module in model.named_modules()}

    def record(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keywords: dict[str, Any]) -> Tensor:
        _refuse_arguments(model, names[module], keywords)
        window = options_of(module, keywords).sliding_window
        layers.append(
            AttentionLayer(names[module], query.shape[1], key.shape[1], key.shape[-1], value.shape[-1], window)
        )
        return query.new_empty(*query.shape[:2], value.shape[-1])

    def recorder(_: int) -> Attend:
        return record

    install(model, model.modules(), recorder)
    token = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    try:
        model(input_ids=token, position_ids=token, use_cache=False)
    except ModelError:
        raise
    except Exception as cause:
        raise ModelError(
            f"{_name(model)}: its attention could not be inspected without weights ({type(cause).__name__}: {cause}); "
            "the family cannot be run"
        ) from cause
    _refuse_partial(model, layers)
    return layers


def _refuse_arguments(model: PreTrainedModel, module: str, keywords: dict[str, Any]) -> None:
    unknown = sorted(key for key, value in keywords.items() if value is not None and key not in _SUPPORTED_ARGUMENTS)
    if unknown:
        raise ModelError(
            f"{_name(model)}: {module} passes {', '.join(unknown)} to its attention, which batchgen does not support"
        )
    if keywords.get("is_causal") is False:
        raise ModelError(f"{_name(model)}: {module} attends to later tokens; only causal models can be run")


def _refuse_partial(model: PreTrainedModel, layers: list[AttentionLayer]) -> None:
    """Refuse layers with state outside the KV cache, and a window of the config that no attention call receives."""
    modules = {layer.module for layer in layers}
    expected = model.config.num_hidden_layers
    if len(modules) != len(layers) or len(layers) != expected:
        raise ModelError(
            f"{_name(model)}: {len(modules)} of {expected} layers go through the attention interface, "
            f"in {len(layers)} calls; layers with other state (recurrent, hybrid) or with several calls cannot be run"
        )
    types = getattr(model.config, "layer_types", None) or []
    if "sliding_attention" in types and all(layer.sliding_window is None for layer in layers):
        raise ModelError(
            f"{_name(model)}: its sliding window is applied only by the attention mask, which batchgen does not build"
        )


def _name(model: PreTrainedModel) -> str:
    return f"model family {model.config.model_type}"
