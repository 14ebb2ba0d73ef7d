"""Decoders whose layers look back a window of tokens only, all or some of them."""

from __future__ import annotations

from tests.zoo.family import LAYERS, Family, shape

WINDOW = 64


def mixed(every: int, layers: int = LAYERS) -> list[str]:
    """Layer types: a full layer after every `every` - 1 layers with a window."""
    return [
        "full_attention" if i % every == every - 1 else "sliding_attention" for i in range(layers)
    ]


WINDOWS = (
    Family("mistral-window", "mistral", shape(sliding_window=WINDOW)),
    Family(
        "gemma2",
        "gemma2",
        shape(
            head_dim=32,
            sliding_window=WINDOW,
            query_pre_attn_scalar=32,
            layer_types=mixed(2),
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma3",
        "gemma3_text",
        shape(
            head_dim=32,
            sliding_window=WINDOW,
            query_pre_attn_scalar=32,
            layer_types=mixed(4),
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma3n",
        "gemma3n_text",
        shape(
            head_dim=32,
            sliding_window=WINDOW,
            layer_types=mixed(4),
            vocab_size_per_layer_input=512,
            hidden_size_per_layer_input=32,
            num_kv_shared_layers=0,
            laurel_rank=16,
            altup_num_inputs=2,
            intermediate_size=[256] * LAYERS,
            activation_sparsity_pattern=[0.0] * LAYERS,
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma4",
        "gemma4_text",
        shape(
            head_dim=32,
            global_head_dim=64,
            sliding_window=WINDOW,
            layer_types=mixed(4),
            hidden_size_per_layer_input=0,
            num_kv_shared_layers=0,
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "gpt-oss",
        "gpt_oss",
        shape(
            head_dim=64,
            num_attention_heads=2,
            sliding_window=WINDOW,
            layer_types=mixed(2),
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=128,
        ),
    ),
    Family(
        "cohere2",
        "cohere2",
        shape(
            sliding_window=WINDOW, layer_types=mixed(4), logit_scale=0.5, tie_word_embeddings=True
        ),
    ),
    Family("olmo3", "olmo3", shape(sliding_window=WINDOW, layer_types=mixed(4))),
    Family(
        "exaone4-window",
        "exaone4",
        shape(sliding_window=WINDOW, sliding_window_pattern="LLLG", layer_types=mixed(4)),
    ),
    Family(
        "llama4",
        "llama4_text",
        shape(
            head_dim=32,
            intermediate_size=128,
            intermediate_size_mlp=256,
            num_local_experts=4,
            num_experts_per_tok=1,
            attention_chunk_size=WINDOW,
            interleave_moe_layer_step=2,
        ),
    ),
)
