"""The fused layers give the logits of the stock ones, on one chunk of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from batchgen.models.attention import IMPLEMENTATION, StepAttention, install
from batchgen.models.fuse import FusedLayer, PackedLinear, fuse
from batchgen.models.kv_cache import allocate
from batchgen.models.probe import AttentionLayer
from batchgen_kernels import AttentionStep, CpuBackend
from tests.tiny_models import VOCAB_SIZE, context_model, tiny_gemma2, tiny_qwen3

NUM_TOKENS, BLOCK_SIZE = 40, 16
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
}


def qwen2() -> PreTrainedModel:
    """Return a model with biases on q, k and v."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def mistral() -> PreTrainedModel:
    """Return a model with a window shorter than the prompt."""
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=12))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: context_model(head_dim=32),
    "qwen3": tiny_qwen3,
    "qwen2": qwen2,
    "mistral": mistral,
}


@torch.inference_mode()
def logits(
    model: PreTrainedModel,
    *,
    fused: bool,
    dtype: torch.dtype = torch.float32,
    prompt: int = 0,
    keep: int | torch.Tensor = 0,
) -> torch.Tensor:
    """Return the logits [NUM_TOKENS or those kept, vocab] of one random prompt, computed with paged attention."""
    model = deepcopy(model).to(dtype)  # type: ignore[arg-type]
    model.set_attn_implementation(IMPLEMENTATION)
    modules = [module for name, module in model.named_modules() if name.endswith("self_attn")]
    kv_heads = model.config.num_key_value_heads
    layers = [AttentionLayer("", 4, kv_heads, size, size, None) for size in (head_size(model),) * len(modules)]
    if fused:
        fuse(model)
    attention = StepAttention(CpuBackend(), allocate(layers, 3, BLOCK_SIZE, dtype, torch.device("cpu")))
    install(model, modules, attention.layer)
    slots = torch.arange(NUM_TOKENS)
    attention.begin(AttentionStep(slots, torch.arange(3)[None], [0, NUM_TOKENS], [NUM_TOKENS], [], BLOCK_SIZE))
    tokens = torch.randint(VOCAB_SIZE, (1, NUM_TOKENS), generator=torch.Generator().manual_seed(prompt))
    output = model(input_ids=tokens, position_ids=slots[None], use_cache=False, logits_to_keep=keep)
    return output.logits[0].float()  # type: ignore[no-any-return]


def head_size(model: PreTrainedModel) -> int:
    size = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
    assert isinstance(size, int)
    return size


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_are_those_of_the_stock_model(family: str) -> None:
    model = FAMILIES[family]()
    torch.testing.assert_close(logits(model, fused=True), logits(model, fused=False), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kept", [[39], [7, 3, 39], []], ids=["last", "some", "none"])
def test_the_last_layer_returns_the_tokens_whose_logits_are_asked_for(family: str, kept: list[int]) -> None:
    model = FAMILIES[family]()
    tokens = torch.tensor(kept, dtype=torch.int64)
    torch.testing.assert_close(
        logits(model, fused=True, keep=tokens), logits(model, fused=False)[tokens], atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_as_close_to_float32_as_the_stock_models(family: str) -> None:
    model = FAMILIES[family]()

    def error(fused: bool) -> float:
        """Return the mean error over enough prompts to average out noise."""
        errors = [
            (logits(model, fused=fused, dtype=torch.bfloat16, prompt=n) - logits(model, fused=False, prompt=n)).abs()
            for n in range(12)
        ]
        return float(torch.stack(errors).mean())

    assert error(fused=True) <= 1.1 * error(fused=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_of_a_supported_family_is_fused(family: str) -> None:
    model = FAMILIES[family]()
    fuse(model)
    assert [type(layer) for layer in model.model.layers] == [FusedLayer] * 2
    assert type(model.lm_head) is PackedLinear


def test_layers_of_another_family_are_not_fused() -> None:
    model = tiny_gemma2()
    before = [type(module) for module in model.model.layers.modules()]
    fuse(model)
    assert [type(module) for module in model.model.layers.modules()] == before


def test_layers_with_another_activation_are_not_fused() -> None:
    model = context_model()
    model.config.hidden_act = "gelu"
    fuse(model)
    assert all(type(layer) is not FusedLayer for layer in model.model.layers)
