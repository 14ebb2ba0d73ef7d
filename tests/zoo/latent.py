"""Multi-head latent attention: one compressed vector per token instead of keys and values."""

from __future__ import annotations

from tests.zoo.family import Family, shape

LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
"""The CPU's kernel is written for 512 + 64."""

ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

_V3 = {**LATENT, **ROUTED, "q_lora_rank": 64, "topk_method": "noaux_tc"}

LATENTS = (
    Family("deepseek-v2", "deepseek_v2", shape(**LATENT, **ROUTED, q_lora_rank=None)),
    Family("deepseek-v3", "deepseek_v3", shape(**_V3)),
    Family(
        "kimi-k2",
        "deepseek_v3",
        shape(**_V3, routed_scaling_factor=2.8, norm_topk_prob=True),
    ),
    Family("glm4-moe-lite", "glm4_moe_lite", shape(**LATENT, **ROUTED, q_lora_rank=64)),
    Family(
        "minicpm3",
        "minicpm3",
        shape(
            num_key_value_heads=4,
            q_lora_rank=64,
            kv_lora_rank=32,
            qk_nope_head_dim=32,
            qk_rope_head_dim=32,
            v_head_dim=64,
        ),
    ),
)
