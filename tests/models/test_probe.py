"""The probe returns the shapes of the attention layers without weights, and refuses unsupported attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedConfig, PreTrainedModel

from batchgen.errors import ModelError
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.probe import AttentionLayer, probe_attention
from tests.tiny_models import context_model, tiny_gemma2, tiny_gpt2, tiny_qwen3


def meta(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        model = model_class._from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=IMPLEMENTATION, dtype=torch.bfloat16
        )
    assert isinstance(model, PreTrainedModel)
    return model


def probe(model: PreTrainedModel) -> list[AttentionLayer]:
    return probe_attention(meta(type(model), model.config))


def test_layers_of_a_model_with_grouped_heads() -> None:
    layers = probe(context_model(head_dim=80, heads=3, kv_heads=3))
    assert [layer.module for layer in layers] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert {(layer.num_heads, layer.num_kv_heads, layer.key_head_size, layer.value_head_size) for layer in layers} == {
        (3, 3, 80, 80)
    }
    assert layers[0].elements_per_token == 3 * 160


def test_windows_are_found_for_each_layer() -> None:
    assert [layer.sliding_window for layer in probe(tiny_gemma2())] == [24, None]


def test_layers_of_other_families_are_found() -> None:
    assert [layer.num_kv_heads for layer in probe(tiny_qwen3())] == [2, 2]
    assert [layer.num_kv_heads for layer in probe(tiny_gpt2())] == [4, 4]


def test_the_attention_of_a_model_with_experts_is_found() -> None:
    config = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    assert len(probe_attention(meta(MixtralForCausalLM, config))) == 2


def with_extra_argument(module: nn.Module, keyword: dict[str, Any]) -> None:
    """Make an attention module pass one more argument to its attention call."""
    forward = module.forward
    module.forward = lambda *args, **kwargs: forward(*args, **kwargs, **keyword)


def test_an_unsupported_argument_is_refused_by_name() -> None:
    model = meta(LlamaForCausalLM, context_model().config)
    with_extra_argument(model.get_submodule("model.layers.1.self_attn"), {"position_bias": 1})
    with pytest.raises(ModelError, match=r"llama: model\.layers\.1\.self_attn passes position_bias to its attention"):
        probe_attention(model)


def test_a_layer_that_never_attends_is_refused() -> None:
    model = meta(LlamaForCausalLM, context_model().config)
    layer = model.get_submodule("model.layers.1")
    layer.forward = lambda hidden_states, *args, **kwargs: hidden_states
    with pytest.raises(ModelError, match="1 of 2 layers go through the attention interface"):
        probe_attention(model)


def test_a_window_that_no_attention_call_receives_is_refused() -> None:
    model = meta(LlamaForCausalLM, context_model().config)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ModelError, match="sliding window is applied only by the attention mask"):
        probe_attention(model)


def test_a_model_whose_forward_needs_weights_is_refused() -> None:
    model = meta(LlamaForCausalLM, context_model().config)
    attention = model.get_submodule("model.layers.0.self_attn")
    attention.forward = lambda hidden_states, **kwargs: hidden_states.item()
    with pytest.raises(ModelError, match="could not be inspected without weights"):
        probe_attention(model)
