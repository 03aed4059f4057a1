"""The stock model's layers rewritten for the CPU: fewer passes over memory, weights packed once for its products.

Only what is recognised exactly is replaced: decoder layers of the classes in `_LAYERS`, whose source was read, and the
output head where it is a plain linear layer. Everything else of the model stays as transformers wrote it. The same
function is computed: in float32 up to the order of sums, in bfloat16 with fewer roundings.
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

# Layers of: norm, attention with q, k, v and o, rotary halves, norm, SwiGLU; Qwen3 also norms the heads of q and k.
# Class name -> the window that its attention module passes on.
_LAYERS: dict[str, Callable[[Any], int | None]] = {
    "LlamaDecoderLayer": lambda attention: None,
    "MistralDecoderLayer": lambda attention: getattr(attention.config, "sliding_window", None),
    "Qwen2DecoderLayer": lambda attention: attention.sliding_window,
    "Qwen3DecoderLayer": lambda attention: attention.sliding_window,
}

log = logging.getLogger("batchgen")


def fuse(model: PreTrainedModel) -> None:
    """Rewrite `model` in place. Names of attention modules stay; the weights of rewritten layers exist packed only."""
    if not _can_pack(model.dtype):
        log.info("the model's layers stay as transformers computes them: oneDNN has no %s products here", model.dtype)
        return
    for name, module in list(model.named_modules()):
        if type(module).__name__ in _LAYERS and _is_silu(module):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, FusedLayer(module))
    layers = [module for module in model.modules() if type(module) is FusedLayer]
    if layers:
        layers[-1].is_last = True
        model.register_forward_pre_hook(_keep_in_last_layer, with_kwargs=True)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear:
        model.set_output_embeddings(PackedLinear(head))  # type: ignore[no-untyped-call]


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch._C._has_mkldnn or dtype not in (torch.float32, torch.bfloat16):
        return False
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _keep_in_last_layer(_: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What asks for the logits of some tokens has the last layer end with those, not the head begin with them."""
    tokens = keywords.get("logits_to_keep")
    if not isinstance(tokens, Tensor):
        return arguments, keywords
    return arguments, {**keywords, "logits_to_keep": 0, "last_tokens": tokens}


def _is_silu(layer: Any) -> bool:
    return layer.mlp.config.hidden_act in ("silu", "swish")


class PackedLinear(nn.Module):
    """One or several linear layers of the same input as one product, their weights in oneDNN's own layout."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        linears: list[Any] = list(layers)
        weights: list[Tensor] = [layer.weight for layer in linears]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights) if len(weights) > 1 else weights[0])
        biases = [layer.bias for layer in linears if layer.bias is not None]
        assert len(biases) in (0, len(linears))
        self._bias = torch.cat(biases) if biases else None

    def forward(self, hidden: Tensor, then: str = "none") -> Tensor:
        """[..., inputs] -> [..., outputs]; `then` may be swish."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self._weight, self._bias, then, [], "")  # type: ignore[no-any-return]

    def combined(self, hidden: Tensor, other: Tensor, how: str) -> Tensor:
        """The product, then add or mul `other` [..., outputs], rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(hidden, other, self._weight, self._bias, how)  # type: ignore[no-any-return]


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
        self.keywords = {"scaling": attention.scaling, "sliding_window": window}  # of the attention call
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            delattr(attention, name)
        self.is_last = False  # of the model
        self.norms_heads = hasattr(attention, "q_norm")
        self.self_attn = attention  # carries the handle to the KV cache, and Qwen3's norms

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        last_tokens: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """As the stock layer, without mask and cache; the model's last one gives `last_tokens` [S] only."""
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
