"""Decoder layers rewritten for the CPU: fused operations that pass over memory less often, and packed weights.

Only layers that are known exactly are replaced: those of the classes in `_LAYERS`, and an output head that is a plain
linear layer. All other modules stay transformers' own. The results are the same up to the order of sums in float32;
in bfloat16 they are rounded less often.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from batchgen.models.attention import attend_step
from batchgen_kernels.cpu.layers import RMSNorm, split_rotated

# Pre-norm layers with q, k, v and o projections, rotary halves and SwiGLU; Qwen3 also normalises the heads of q and k.
# Class name -> the sliding window that its attention module passes on.
_LAYERS: dict[str, Callable[[Any], int | None]] = {
    "LlamaDecoderLayer": lambda attention: None,
    "MistralDecoderLayer": lambda attention: getattr(attention.config, "sliding_window", None),
    "Qwen2DecoderLayer": lambda attention: attention.sliding_window,
    "Qwen3DecoderLayer": lambda attention: attention.sliding_window,
}

log = logging.getLogger("batchgen")


def fuse(model: PreTrainedModel) -> None:
    """Rewrite `model` in place. Attention modules keep their names; rewritten layers keep only their packed weights."""
    if not _can_pack(model.dtype):
        log.info("the model's layers are not fused: oneDNN has no %s matrix products on this CPU", model.dtype)
        return
    for name, module in list(model.named_modules()):
        if type(module).__name__ in _LAYERS and _is_silu(module):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, FusedLayer(module))
    layers = [module for module in model.modules() if type(module) is FusedLayer]
    if layers:
        layers[-1].is_last = True
        model.register_forward_pre_hook(_select_in_last_layer, with_kwargs=True)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear:
        model.set_output_embeddings(PackedLinear(head))  # type: ignore[no-untyped-call]


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch._C._has_mkldnn or dtype not in (torch.float32, torch.bfloat16):
        return False
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _select_in_last_layer(_: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Have the last layer, instead of the output head, select the tokens whose logits are asked for."""
    tokens = keywords.get("logits_to_keep")
    if not isinstance(tokens, Tensor):
        return arguments, keywords
    return arguments, {**keywords, "logits_to_keep": 0, "last_tokens": tokens}


def _is_silu(layer: Any) -> bool:
    return layer.mlp.config.hidden_act in ("silu", "swish")


class PackedLinear(nn.Module):
    """One or several linear layers of the same input as one matrix product, with weights in oneDNN's own layout."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        linears: list[Any] = list(layers)
        weights: list[Tensor] = [layer.weight for layer in linears]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights) if len(weights) > 1 else weights[0])
        biases = [layer.bias for layer in linears if layer.bias is not None]
        assert len(biases) in (0, len(linears))
        self._bias = torch.cat(biases) if biases else None

    def forward(self, hidden: Tensor, activation: str = "none") -> Tensor:
        """[..., inputs] -> [..., outputs]; `activation` is none or swish."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self._weight, self._bias, activation, [], "")  # type: ignore[no-any-return]

    def combined(self, hidden: Tensor, other: Tensor, operation: str) -> Tensor:
        """Return the product combined with `other` [..., outputs] by `operation` (add or mul), rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(hidden, other, self._weight, self._bias, operation)  # type: ignore[no-any-return]


class FusedLayer(nn.Module):
    """A pre-norm decoder layer with rotary attention and SwiGLU, on the tokens of a step [1, T, hidden_size]."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.mlp_norm = map(_norm, (layer.input_layernorm, layer.post_attention_layernorm))
        self.qkv = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = PackedLinear(attention.o_proj)
        self.gate, self.up, self.down = (PackedLinear(each) for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self.head_size = attention.head_dim
        self.num_heads = attention.config.num_attention_heads
        self.num_kv_heads = attention.config.num_key_value_heads
        window = _LAYERS[type(layer).__name__](attention)
        self.keywords = {"scaling": attention.scaling, "sliding_window": window}  # arguments of the attention call
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            delattr(attention, name)
        self.is_last = False  # whether it is the model's last layer
        self.norms_heads = hasattr(attention, "q_norm")
        self.self_attn = attention  # carries the handle to the KV cache, and Qwen3's norms

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        last_tokens: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Compute the stock layer without mask and cache; the last layer returns the tokens `last_tokens` [S] only."""
        hidden = hidden_states[0]
        context = self._attend(self.input_norm(hidden), *position_embeddings)
        if self.is_last and last_tokens is not None:
            hidden, context = hidden[last_tokens], context[last_tokens]
        hidden = self.out.combined(context, hidden, "add")
        normed = self.mlp_norm(hidden)
        gated = self.up.combined(normed, self.gate(normed, "swish"), "mul")
        return self.down.combined(gated, hidden, "add")[None]

    def _attend(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, heads * head_size]."""
        heads = self.qkv(hidden).view(len(hidden), -1, self.head_size)
        if self.norms_heads:
            query, key, _ = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], 1)
            query.copy_(self.self_attn.q_norm(query))
            key.copy_(self.self_attn.k_norm(key))
        query, key, value = split_rotated(heads, cos[0], sin[0], self.num_heads)
        return attend_step(self.self_attn, query, key, value, self.keywords).flatten(1)


def _norm(norm: Any) -> RMSNorm:
    return RMSNorm(norm.weight.detach(), norm.variance_epsilon)
