"""Families with experts: four experts, two of them used for each token."""

from __future__ import annotations

from collections.abc import Mapping

from tests.families.family import (
    HALF_ROTARY,
    LATENT,
    LATENT_TRAIT,
    ONE_EXPERT,
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

_LOCAL: Settings = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NUM: Settings = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED: Settings = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_EXPERTS: Features = {"two experts a token": ONE_EXPERT}
_ROUTED_SCALE: Features = {"expert scale": {"routed_scaling_factor": 1.0}}
_GROUPS: Settings = {"n_group": 2, "topk_group": 1}
_GROUPED: Features = {"grouped expert routing": {"n_group": 1, "topk_group": 1}}
_YARN = scaled_rope("yarn", beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
_DENSE_FIRST = "first layer dense"
_SHARED = "shared expert"

# fmt: off
EXPERTS: Mapping[str, Family] = {
    "mixtral": Family("Mixtral", {**_LOCAL, **SLIDING}, _EXPERTS | {"sliding window": UNLIMITED}),
    "qwen2_moe": Family(
        "Qwen2-MoE (without a window)", {**_NUM, "shared_expert_intermediate_size": 32, "norm_topk_prob": True},
        _EXPERTS | {"renormalised expert weights": {"norm_topk_prob": False}}, (_SHARED, "query, key and value biases"),
    ),
    "qwen3_moe": Family(
        "Qwen3-MoE",
        {**_NUM, **SLIDING, "use_sliding_window": True, "head_dim": 24, "norm_topk_prob": True, "mlp_only_layers": [0]},
        _EXPERTS | {"sliding window": UNLIMITED, "renormalised expert weights": {"norm_topk_prob": False}},
        (_DENSE_FIRST, "query and key norms"),
    ),
    "olmoe": Family(
        "OLMoE", {**_NUM, "clip_qkv": 0.5}, _EXPERTS | {"clipped queries, keys and values": {"clip_qkv": None}},
        ("query and key norms",),
    ),
    "flex_olmo": Family("FlexOlmo", _NUM, _EXPERTS, ("query and key norms", "norms after each block")),
    "gpt_oss": Family(
        "GPT-OSS", mixed(head_dim=16, **_LOCAL, **_YARN), _EXPERTS | ONE_WINDOW | {"YaRN": rotary()},
        ("attention sinks", "biases"),
    ),
    "glm4_moe": Family(
        "GLM-4-MoE",
        {**_ROUTED, **_GROUPS, "head_dim": 16, "use_qk_norm": True, "routed_scaling_factor": 2.0,
         "first_k_dense_replace": 1, "attention_bias": True, **rotary(0.5)},
        _EXPERTS | HALF_ROTARY | _GROUPED | _ROUTED_SCALE | {"query and key norms": {"use_qk_norm": False},
                                                       "biases": {"attention_bias": False}},
        (_DENSE_FIRST, _SHARED), seed=2,
    ),
    "glm4_moe_lite": Family(
        "GLM-4-MoE-Lite",
        {**_ROUTED, **LATENT, **_GROUPS, "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 2.0},
        _EXPERTS | _GROUPED | _ROUTED_SCALE, (LATENT_TRAIT, _DENSE_FIRST, _SHARED),
    ),
    "deepseek_v2": Family(
        "DeepSeek-V2",
        {**_ROUTED, **LATENT, **_GROUPS, **_YARN, "topk_method": "group_limited_greedy", "n_shared_experts": 1,
         "first_k_dense_replace": 1, "routed_scaling_factor": 2.0},
        _EXPERTS | _GROUPED | _ROUTED_SCALE | {"YaRN with its attention scale": rotary()},
        (LATENT_TRAIT, _DENSE_FIRST, _SHARED),
    ),
    "deepseek_v3": Family(
        "DeepSeek-V3",
        {**_ROUTED, **LATENT, **_GROUPS, **_YARN, "n_shared_experts": 1, "first_k_dense_replace": 1,
         "routed_scaling_factor": 2.0},
        _EXPERTS | _GROUPED | _ROUTED_SCALE | {"YaRN with its attention scale": rotary()},
        (LATENT_TRAIT, "router bias", _DENSE_FIRST, _SHARED),
    ),
    "dots1": Family(
        "dots.llm1",
        mixed(**_ROUTED, **_GROUPS, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.0),
        _EXPERTS | ONE_WINDOW | _GROUPED | _ROUTED_SCALE, ("query and key norms", _DENSE_FIRST, _SHARED),
    ),
    "ernie4_5_moe": Family(
        "ERNIE 4.5 MoE",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1,
         "moe_layer_start_index": 1, "moe_layer_end_index": 1, "use_bias": True, "tie_word_embeddings": True},
        {"two experts a token": {"moe_k": 1}, "biases": {"use_bias": False}},
        ("router bias", _DENSE_FIRST, _SHARED, "tied embeddings"),
    ),
    "exaone_moe": Family(
        "EXAONE-MoE", mixed(**_NUM, **_GROUPS, mlp_layer_types=["dense", "sparse"], routed_scaling_factor=2.0),
        _EXPERTS | ONE_WINDOW | _GROUPED | _ROUTED_SCALE,
        ("no positions in the full layer", "query and key norms", _DENSE_FIRST, _SHARED), seed=1,
    ),
    "granitemoe": Family("Granite-MoE", {**_LOCAL, **SCALES}, _EXPERTS | SCALED, seed=1),
    "granitemoeshared": Family(
        "Granite-MoE (shared experts)", {**_LOCAL, **SCALES, "shared_intermediate_size": 32},
        _EXPERTS | SCALED, (_SHARED,), seed=2,
    ),
    "granitemoe_swa": Family(
        "Granite-MoE (sliding window)",
        mixed(**_LOCAL, **SCALES, shared_intermediate_size=32, layer_rope_theta=[1e2, 1e4]),
        _EXPERTS | ONE_WINDOW | SCALED | {"separate RoPE for each layer": {"layer_rope_theta": [1e4, 1e4]}},
        ("attention sinks", _SHARED), seed=2,
    ),
    "phimoe": Family(
        "Phi-MoE (without a window)", {**_LOCAL, "attention_bias": True, "lm_head_bias": True},
        {"biases": {"attention_bias": False, "lm_head_bias": False}}, ("two experts a token",),
    ),
    "hunyuan_v1_moe": Family(
        "Hunyuan (MoE)", {"head_dim": 16, "num_experts": 4, "moe_topk": 2}, {"two experts a token": {"moe_topk": 1}},
        ("query and key norms after the rotation", _SHARED),
    ),
    "minimax_m2": Family("MiniMax-M2", {**_LOCAL, "head_dim": 16, **rotary(0.5)}, _EXPERTS | HALF_ROTARY,
                         ("query and key norms", "router bias"), seed=1),
    "mimo_v2_flash": Family(
        "MiMo-V2-Flash",
        mixed(**_ROUTED, head_dim=24, v_head_dim=16, mlp_layer_types=["dense", "sparse"], attention_value_scale=0.5,
              rope_parameters=dict.fromkeys(["sliding_attention", "full_attention"], rotary(0.5)["rope_parameters"])),
        _EXPERTS | ONE_WINDOW | {"value scale": {"attention_value_scale": None}},
        ("K and V heads of different sizes", "attention sinks in the sliding layer", _DENSE_FIRST),
    ),
    "solar_open": Family(
        "Solar Open", {**_ROUTED, **_GROUPS, "head_dim": 16, "routed_scaling_factor": 2.0},
        _EXPERTS | _GROUPED | _ROUTED_SCALE, (_SHARED, "router bias"),
    ),
    "afmoe": Family(
        "AFMoE",
        mixed(**_NUM, head_dim=16, num_shared_experts=1, num_dense_layers=1, mup_enabled=True, route_scale=2.0),
        _EXPERTS | ONE_WINDOW | {"embedding scale": {"mup_enabled": False}, "expert scale": {"route_scale": 1.0}},
        ("gated attention", "no positions in the full layer", "query and key norms", _DENSE_FIRST, _SHARED),
    ),
}
# fmt: on
