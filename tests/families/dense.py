"""Families without experts."""

from __future__ import annotations

from collections.abc import Mapping

from tests.families.family import (
    HALF_ROTARY,
    LATENT,
    LATENT_TRAIT,
    ONE_WINDOW,
    SCALED,
    SCALES,
    SLIDING,
    UNLIMITED,
    Family,
    Features,
    Settings,
    mixed,
    rotary,
    scaled_rope,
)

_WINDOW: Features = {"sliding window": UNLIMITED}
_CAPS: Settings = {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 10.0}
_CAPPED: Features = {
    "attention soft cap": {"attn_logit_softcapping": None},
    "logit soft cap": {"final_logit_softcapping": None},
}
_QUERY_SCALE: Features = {"attention scale": {"query_pre_attn_scalar": 16}}
_NO_DROPOUT: Settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_TWO_ROPES: Settings = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
}
_ONE_ROPE: Settings = {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _TWO_ROPES}}

# fmt: off
DENSE: Mapping[str, Family] = {
    "llama": Family(
        "Llama",
        {"attention_bias": True, "mlp_bias": True, **scaled_rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0)},
        {"llama3 RoPE": rotary(), "biases": {"attention_bias": False, "mlp_bias": False}}, seed=1,
    ),
    "mistral": Family("Mistral", SLIDING, _WINDOW, seed=1),
    "ministral": Family("Ministral", mixed(head_dim=24), ONE_WINDOW),
    "ministral3": Family(
        "Ministral 3",
        {"head_dim": 24, **scaled_rope("yarn", beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                                     llama_4_scaling_beta=0.5)},
        {"query scale that grows with the position": scaled_rope(
            "yarn", beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.0)},
    ),
    "qwen2": Family("Qwen2", mixed(use_sliding_window=True), ONE_WINDOW, ("query, key and value biases",)),
    "qwen3": Family("Qwen3", mixed(use_sliding_window=True, head_dim=24), ONE_WINDOW, ("query and key norms",)),
    "gemma": Family(
        "Gemma", {"head_dim": 24, "num_key_value_heads": 1, "tie_word_embeddings": True}, {},
        ("one KV head", "scaled, tied embeddings"),
    ),
    "gemma2": Family(
        "Gemma 2", mixed(head_dim=16, query_pre_attn_scalar=6, **_CAPS), ONE_WINDOW | _CAPPED | _QUERY_SCALE,
        ("norms after each block",),
    ),
    "gemma3_text": Family(
        "Gemma 3 (text)", mixed(head_dim=16, query_pre_attn_scalar=6, rope_parameters=_TWO_ROPES, **_CAPS),
        ONE_WINDOW | _QUERY_SCALE | {"separate RoPE for each kind of layer": _ONE_ROPE,
                                      "logit soft cap": {"final_logit_softcapping": None}},
        ("query and key norms",), seed=2,
    ),
    "vaultgemma": Family(
        "VaultGemma", mixed(head_dim=16, query_pre_attn_scalar=6, **_CAPS), ONE_WINDOW | _CAPPED | _QUERY_SCALE, seed=1,
    ),
    "phi": Family(
        "Phi", {"qk_layernorm": True, **rotary(0.5)}, HALF_ROTARY | {"query and key norms": {"qk_layernorm": False}},
        ("parallel residual", "biases"),
    ),
    "phi3": Family("Phi-3", {**SLIDING, **rotary(0.5)}, _WINDOW | HALF_ROTARY, ("fused query, key and value",)),
    "olmo": Family("OLMo", {"clip_qkv": 0.5}, {"clipped queries, keys and values": {"clip_qkv": None}}),
    "olmo2": Family("OLMo 2", {}, {}, ("query and key norms", "norms after each block")),
    "olmo3": Family("OLMo 3", mixed(), ONE_WINDOW, ("query and key norms", "norms after each block")),
    "granite": Family("Granite", SCALES, SCALED, seed=2),
    "granite_swa": Family(
        "Granite (sliding window)", mixed(layer_rope_theta=[1e2, 1e4], **SCALES),
        ONE_WINDOW | SCALED | {"separate RoPE for each layer": {"layer_rope_theta": [1e4, 1e4]}}, ("attention sinks",),
    ),
    "hyperclovax": Family(
        "HyperCLOVA X", {"head_dim": 16, "use_post_norm": True, **SCALES}, SCALED, ("norms after each block",),
    ),
    "cohere": Family(
        "Cohere", {"logit_scale": 0.25, "use_qk_norm": True, "tie_word_embeddings": True},
        {"logit scale": {"logit_scale": 1.0}, "query and key norms": {"use_qk_norm": False}},
        ("parallel residual", "tied embeddings"), std=0.5, seed=1,
    ),
    "cohere2": Family(
        "Cohere 2", mixed(logit_scale=0.25, tie_word_embeddings=True),
        ONE_WINDOW | {"logit scale": {"logit_scale": 1.0}},
        ("no positions in the full layer", "parallel residual", "tied embeddings"), std=0.5,
    ),
    "starcoder2": Family(
        "StarCoder2", {**SLIDING, "use_bias": True, "tie_word_embeddings": True},
        _WINDOW | {"biases": {"use_bias": False}}, ("tied embeddings",),
    ),
    "stablelm": Family(
        "StableLM", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True, **rotary(0.5)},
        HALF_ROTARY | {"biases": {"use_qkv_bias": False}, "query and key norms": {"qk_layernorm": False},
                 "parallel residual": {"use_parallel_residual": False}}, std=0.5,
    ),
    "gpt_neox": Family(
        "GPT-NeoX", {"use_parallel_residual": True, "attention_bias": True, **rotary(0.5)},
        HALF_ROTARY | {"parallel residual": {"use_parallel_residual": False}, "biases": {"attention_bias": False}},
        seed=1,
    ),
    "gpt2": Family(
        "GPT-2", {**_NO_DROPOUT, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": True},
        {"separate attention scale for each layer": {"scale_attn_by_inverse_layer_idx": False}},
        ("learned positions", "tied embeddings"), std=0.5, seed=2,
    ),
    "gpt_bigcode": Family(
        "GPT-BigCode", {**_NO_DROPOUT, "multi_query": True, "tie_word_embeddings": True}, {},
        ("one KV head", "learned positions", "tied embeddings"), std=0.5,
    ),
    "gptj": Family("GPT-J", {**_NO_DROPOUT, "rotary_dim": 8}, {"partial rotary embedding": {"rotary_dim": 16}},
                   ("parallel residual",)),
    "codegen": Family("CodeGen", {**_NO_DROPOUT, "rotary_dim": 8}, {"partial rotary embedding": {"rotary_dim": 16}},
                      ("parallel residual", "fused query, key and value")),
    "opt": Family(
        "OPT", {"ffn_dim": 96, "word_embed_proj_dim": 32, "dropout": 0.0, "tie_word_embeddings": True}, {},
        ("learned positions", "embeddings narrower than the model", "tied embeddings"),
    ),
    "biogpt": Family(
        "BioGPT", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "tie_word_embeddings": True},
        {"embedding scale": {"scale_embedding": False}}, ("learned positions", "tied embeddings"), std=0.5,
    ),
    "persimmon": Family(
        "Persimmon", rotary(0.5), HALF_ROTARY | {"query and key norms": {"qk_layernorm": False}}, ("squared ReLU",),
        std=0.5,
    ),
    "glm": Family("GLM", {"head_dim": 16, **rotary(0.5)}, HALF_ROTARY | {"biases": {"attention_bias": False}}),
    "glm4": Family("GLM-4", {"head_dim": 16, **rotary(0.5)}, HALF_ROTARY | {"biases": {"attention_bias": False}},
                   ("norms after each block",)),
    "smollm3": Family(
        "SmolLM3", mixed(use_sliding_window=True, no_rope_layers=[1, 0], tie_word_embeddings=True),
        ONE_WINDOW | {"no positions in one of two layers": {"no_rope_layers": [1, 1]}}, ("tied embeddings",),
    ),
    "nemotron": Family(
        "Nemotron", {"head_dim": 16, "attention_bias": True, "mlp_bias": True, **rotary(0.5)},
        HALF_ROTARY | {"biases": {"attention_bias": False, "mlp_bias": False}}, ("squared ReLU",),
    ),
    "exaone": Family("EXAONE 3", {}, {}, ("grouped heads",)),
    "exaone4": Family("EXAONE 4", mixed(), ONE_WINDOW,
                      ("no positions in the full layer", "query and key norms", "norms after each block")),
    "ernie4_5": Family(
        "ERNIE 4.5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True}, {"biases": {"use_bias": False}},
        ("interleaved rotary", "tied embeddings"),
    ),
    "seed_oss": Family(
        "Seed-OSS", {"head_dim": 24, "attention_dropout": 0.0, "residual_dropout": 0.0, "attention_out_bias": True},
        {"biases": {"attention_bias": False, "attention_out_bias": False}},
    ),
    "apertus": Family("Apertus", scaled_rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
                      {"llama3 RoPE": rotary()}, ("query and key norms", "xIELU")),
    "helium": Family("Helium", {"head_dim": 16}, {}, ("interleaved rotary",)),
    "arcee": Family("Arcee", {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
                    {"biases": {"attention_bias": False, "mlp_bias": False}}, ("squared ReLU",)),
    "hunyuan_v1_dense": Family("Hunyuan (dense)", {"head_dim": 16}, {}, ("query and key norms after the rotation",)),
    "internlm3": Family("InternLM3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
                        {"biases": {"attention_bias": False, "mlp_bias": False}}),
    "bitnet": Family("BitNet (unpacked weights)", {}, {}, ("norms inside each block", "squared ReLU")),
    "jais2": Family("Jais 2", {"head_dim": 16}, {"biases": {"attention_bias": False, "mlp_bias": False}},
                    ("squared ReLU",)),
    "cwm": Family("CWM", mixed(head_dim=16, **scaled_rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0)),
                  ONE_WINDOW | {"llama3 RoPE": rotary()}),
    "nanochat": Family(
        "nanochat", {"final_logit_softcapping": 4.0}, {"logit soft cap": {"final_logit_softcapping": None}},
        ("query and key norms without weights", "squared ReLU"), seed=3,
    ),
    "minicpm3": Family("MiniCPM3", {**LATENT, "scale_emb": 3, "dim_model_base": 16},
                       {"embedding scale": {"scale_emb": 1}, "logit scale": {"dim_model_base": 64},
                        "residual scale": {"scale_depth": 1.0}},
                       (LATENT_TRAIT,), seed=7),
    "youtu": Family("Youtu", {**LATENT, "tie_word_embeddings": True}, {}, (LATENT_TRAIT, "tied embeddings")),
    "modernbert-decoder": Family(
        "ModernBERT decoder", {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 32,
         "cls_token_id": 3, "sep_token_id": 4},
        {"sliding window on one of two layers": {"local_attention": 400}}, ("tied embeddings",), std=0.5,
    ),
}
# fmt: on
