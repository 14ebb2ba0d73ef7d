"""Decoders whose feed-forward networks are experts, with full attention."""

from __future__ import annotations

from tests.zoo.family import Family, shape

_FOUR = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

EXPERTS = (
    Family(
        "mixtral",
        "mixtral",
        shape(num_local_experts=4, num_experts_per_tok=2, intermediate_size=128),
    ),
    Family(
        "phimoe",
        "phimoe",
        # vLLM has these biases always: left out of a checkpoint, they are whatever memory holds.
        shape(
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=128,
            attention_bias=True,
            lm_head_bias=True,
        ),
        architecture="PhiMoEForCausalLM",
    ),
    Family("qwen2-moe", "qwen2_moe", shape(**_FOUR, shared_expert_intermediate_size=64)),
    Family("qwen3-moe", "qwen3_moe", shape(**_FOUR, head_dim=32)),
    Family("olmoe", "olmoe", shape(num_experts=4, num_experts_per_tok=2, intermediate_size=128)),
    Family(
        "granite-moe",
        "granitemoe",
        shape(num_local_experts=4, num_experts_per_tok=2, intermediate_size=128),
    ),
    Family(
        "granite-moe-shared",
        "granitemoeshared",
        shape(
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=128,
            shared_intermediate_size=128,
        ),
    ),
    Family(
        "glm4-moe",
        "glm4_moe",
        shape(
            head_dim=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
        ),
    ),
    Family(
        "ernie4.5-moe",
        "ernie4_5_moe",
        shape(
            moe_num_experts=4,
            moe_k=2,
            moe_intermediate_size=64,
            moe_num_shared_experts=1,
            moe_layer_start_index=1,
        ),
    ),
    Family(
        "hunyuan-moe",
        "hunyuan_v1_moe",
        shape(
            head_dim=32,
            num_experts=4,
            moe_topk=2,
            moe_intermediate_size=64,
            intermediate_size=64,
        ),
    ),
    Family(
        "exaone-moe",
        "exaone_moe",
        shape(
            head_dim=32,
            sliding_window=64,
            layer_types=["full_attention"] * 8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
        ),
    ),
)
