from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from batchgen.errors import ModelError
from batchgen.models.multimodal import TESTED_MULTIMODAL
from batchgen.models.support import TESTED_FAMILIES, refuse_unsupported
from tests.families.multimodal import MULTIMODAL
from tests.families.registry import AVAILABLE, FAMILIES, tiny_config


def _refusal(family: str, **settings: Any) -> str:
    """Return the reason why the family is refused although untested ones are allowed."""
    with pytest.raises(ModelError, match=f"model family {family} ") as refused:
        refuse_unsupported(AutoConfig.for_model(family, **settings), allow_untested=True)
    return str(refused.value)


def _passes(family: str, **settings: Any) -> None:
    refuse_unsupported(AutoConfig.for_model(family, **settings), allow_untested=True)


def test_the_tested_families_are_those_with_a_parity_test() -> None:
    assert set(FAMILIES) == TESTED_FAMILIES


def test_the_tested_multimodal_families_are_those_with_a_parity_test() -> None:
    assert set(MULTIMODAL) == TESTED_MULTIMODAL


@pytest.mark.parametrize("family", AVAILABLE)
def test_tested_families_are_allowed(family: str) -> None:
    refuse_unsupported(tiny_config(family), allow_untested=False)


def test_an_untested_family_needs_allow_untested() -> None:
    with pytest.raises(ModelError, match=r"dbrx has no parity test .*model\.allow_untested: true"):
        refuse_unsupported(AutoConfig.for_model("dbrx"), allow_untested=False)
    _passes("dbrx")


@pytest.mark.parametrize(
    "family",
    [
        "mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "zamba2", "lfm2", "qwen3_next",
        "falcon_h1", "granitemoehybrid", "recurrent_gemma", "nemotron_h", "minimax", "kimi_linear", "lfm2_moe",
        "olmo_hybrid", "xlstm", "qwen3_5_text",
    ],
)  # fmt: skip
def test_recurrent_and_hybrid_families_are_refused(family: str) -> None:
    assert "recurrent, convolutional or hybrid layers" in _refusal(family)


@pytest.mark.parametrize("family", ["falcon", "mpt", "bloom", "gpt_neo", "xglm", "openai-gpt"])
def test_families_without_the_attention_interface_are_refused(family: str) -> None:
    assert "does not use the attention interface" in _refusal(family)


@pytest.mark.parametrize("family", ["t5", "bart", "pegasus", "whisper"])
def test_encoder_decoders_are_refused(family: str) -> None:
    assert "encoder-decoder" in _refusal(family)


@pytest.mark.parametrize(
    ("family", "part", "reason"),
    [
        ("llama4", "llama4_text", "chunked_attention"),
        ("lfm2_vl", "lfm2", "recurrent, convolutional or hybrid layers"),
        ("qwen3_5", "qwen3_5_text", "recurrent, convolutional or hybrid layers"),
        ("gemma4", "gemma4_text", "has no parity test"),
        ("mllama", "mllama_text_model", "no causal language model"),
    ],
)
def test_a_multimodal_model_is_refused_by_its_language_part(family: str, part: str, reason: str) -> None:
    with pytest.raises(
        ModelError, match=rf"the language part \({part}\) of the multimodal model family {family} "
    ) as no:
        refuse_unsupported(AutoConfig.for_model(family), allow_untested=True)
    assert reason in str(no.value)


def test_quantised_weights_of_a_multimodal_model_are_refused() -> None:
    assert "quantised (fp8)" in _refusal("mistral3", quantization_config={"quant_method": "fp8"})


def test_prompts_that_attend_to_later_tokens_are_refused() -> None:
    assert "attend to later ones" in _refusal("paligemma")


def test_a_multimodal_family_without_a_parity_test_needs_allow_untested() -> None:
    with pytest.raises(ModelError, match=r"aya_vision has no parity test .*model\.allow_untested: true"):
        refuse_unsupported(AutoConfig.for_model("aya_vision"), allow_untested=False)
    _passes("aya_vision")


def test_a_multimodal_model_without_a_separate_language_part_is_refused() -> None:
    assert "vision_config" in _refusal("phi4_multimodal")
    assert "vision_config" in _refusal("llama", vision_config={"hidden_size": 8})


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForSequenceClassification", "Qwen2ForRewardModel", "Qwen2ForProcessRewardModel", "BertForMaskedLM",
        "LlamaForTokenClassification", "LlamaForQuestionAnswering", "LlamaModel", "Gemma3TextModel",
        "LlamaForCausalLMEagle3",
    ],
)  # fmt: skip
def test_what_does_not_generate_text_is_refused_by_its_architecture(architecture: str) -> None:
    assert f"its architecture in config.json is {architecture}" in _refusal("llama", architectures=[architecture])
    assert architecture in _refusal("gemma3", architectures=[architecture])


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
        "Gemma3ForConditionalGeneration",
        "BertGenerationDecoder",
        "LLaMAForCausalLM",
    ],
)
def test_generators_pass_by_their_architecture(architecture: str) -> None:
    _passes("llama", architectures=[architecture])


def test_an_architecture_that_is_not_given_passes() -> None:
    _passes("llama", architectures=None)


def test_a_model_class_of_the_checkpoint_may_have_any_name() -> None:
    _passes("llama", architectures=["OwnThing"], auto_map={"AutoModelForCausalLM": "own_code.OwnThing"})
    _passes("llama", architectures=["ChatGLMModel"], auto_map={"AutoModelForCausalLM": "own_code.OwnThing"})
    own = {"AutoModelForCausalLM": "own_code.OwnThing"}
    assert "OtherHead" in _refusal("llama", architectures=["OtherHead"], auto_map=own)


def test_a_model_type_without_a_causal_class_is_refused() -> None:
    assert "no causal language model" in _refusal("vit")


def test_quantised_weights_are_refused_by_their_method() -> None:
    assert "quantised (gptq)" in _refusal("llama", quantization_config={"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    ("family", "kind"), [("llama4_text", "chunked_attention"), ("deepseek_v32", "only full and sliding attention")]
)
def test_layers_of_an_unsupported_type_are_refused(family: str, kind: str) -> None:
    assert kind in _refusal(family)


@pytest.mark.parametrize("family", ["qwen2_moe", "phimoe"])
def test_a_window_applied_only_by_the_mask_is_refused(family: str) -> None:
    assert "window is applied only by the attention mask" in _refusal(
        family, sliding_window=32, use_sliding_window=True
    )


@pytest.mark.parametrize("family", ["qwen2_moe", "phimoe"])
def test_without_a_window_the_same_families_pass(family: str) -> None:
    _passes(family, sliding_window=None)


def test_a_window_that_reaches_the_attention_call_passes() -> None:
    _passes("mistral", sliding_window=32)


def test_a_window_that_the_family_ignores_passes() -> None:
    _passes("llama", sliding_window=32)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("gemma2", {"use_bidirectional_attention": True}),
        ("llama", {"is_causal": False}),
    ],
)
def test_attention_to_later_tokens_is_refused(family: str, settings: dict[str, Any]) -> None:
    assert "later tokens" in _refusal(family, **settings)


def test_bert_as_a_decoder_passes() -> None:
    _passes("bert", is_decoder=True)


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        ("llama", {"type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        (
            "gemma3_text",
            {
                "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
    ],
)
def test_rope_that_depends_on_the_batch_is_refused(family: str, rope: dict[str, Any]) -> None:
    assert "depends on the longest position in the batch" in _refusal(family, rope_parameters=rope)


_LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48, "rope_theta": 1e4}


def test_longrope_passes_where_its_factors_can_be_fixed() -> None:
    _passes("phi3", rope_parameters=_LONGROPE)


def test_longrope_with_a_scale_that_depends_on_the_batch_is_refused() -> None:
    scaled = {**_LONGROPE, "short_mscale": 1.0, "long_mscale": 1.2, "original_max_position_embeddings": 4096}
    assert "(longrope) is scaled by the longest position in the batch" in _refusal("phimoe", rope_parameters=scaled)


def test_rope_with_a_fixed_scaling_passes() -> None:
    _passes("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
