"""State-space and linear-attention layers, alone or among attention layers."""

from __future__ import annotations

from tests.zoo.family import HIDDEN, LAYERS, VOCABULARY, Family, shape

_LINEAR = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
_DELTA = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 32,
    "layer_types": _LINEAR * (LAYERS // 4),
}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
}
_UNCACHED = {"enable_prefix_caching": False}
"""On a CPU, Mamba2's prefill gives the last state only, and a cached prefix needs those between."""
_SINGLE = {"dtype": "float32"}
"""Mamba's first layer fails in bfloat16: vLLM packs its convolution on such CPUs, and reads it."""
_STATE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

STATES = (
    Family("mamba", "mamba", {**_STATE, "time_step_rank": 8}, arguments=_SINGLE),
    Family("falcon-mamba", "falcon_mamba", {**_STATE, "time_step_rank": 8}, arguments=_SINGLE),
    Family(
        "mamba2",
        "mamba2",
        {**_STATE, "num_heads": 8, "head_dim": 32, "n_groups": 1, "chunk_size": 64},
        arguments=_UNCACHED,
    ),
    Family(
        "granite4-hybrid",
        "granitemoehybrid",
        shape(
            **_MAMBA2,
            layer_types=["mamba", "mamba", "mamba", "attention"] * 2,
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=64,
            shared_intermediate_size=128,
            position_embedding_type="nope",
        ),
        arguments=_UNCACHED,
    ),
    Family(
        "falcon-h1",
        "falcon_h1",
        shape(**{**_MAMBA2, "mamba_d_ssm": 256}, head_dim=32),
        arguments=_UNCACHED,
    ),
    Family(
        "nemotron-h",
        "nemotron_h",
        shape(
            "num_hidden_layers",
            head_dim=32,
            layers_block_type=["mamba", "mlp", "attention", "mlp"] * 2,
            mamba_num_heads=8,
            mamba_head_dim=32,
            ssm_state_size=16,
            n_groups=1,
            chunk_size=64,
        ),
        arguments=_UNCACHED,
    ),
    Family(
        "jamba",
        "jamba",
        shape(
            num_experts=4,
            num_experts_per_tok=2,
            intermediate_size=128,
            attn_layer_period=4,
            attn_layer_offset=3,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=16,
            mamba_dt_rank=8,
            use_mamba_kernels=False,
        ),
        arguments=_SINGLE,
    ),
    Family(
        "zamba2",
        "zamba2",
        shape(
            num_attention_heads=4,
            num_key_value_heads=4,
            layers_block_type=["mamba", "hybrid", "mamba", "mamba"] * 2,
            mamba_d_state=16,
            mamba_ngroups=1,
            n_mamba_heads=8,
            mamba_expand=2,
            num_mem_blocks=1,
            chunk_size=64,
            tie_word_embeddings=True,
        ),
        arguments=_UNCACHED,
    ),
    Family(
        "qwen3-next",
        "qwen3_next",
        shape(
            **_DELTA,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
        ),
    ),
    Family("qwen3.5", "qwen3_5_text", shape(**_DELTA), architecture="Qwen3_5ForCausalLM"),
    Family(
        "lfm2",
        "lfm2",
        shape(
            layer_types=["conv", "conv", "full_attention", "conv"] * 2,
            block_multiple_of=32,
            block_dim=HIDDEN,
            conv_dim=HIDDEN,
            conv_dim_out=HIDDEN,
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "lfm2-moe",
        "lfm2_moe",
        shape(
            layer_types=["conv", "conv", "full_attention", "conv"] * 2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            num_dense_layers=2,
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "olmo-hybrid", "olmo_hybrid", shape(**{k: v for k, v in _DELTA.items() if k != "head_dim"})
    ),
)
