"""Decoders with full attention and one feed-forward network per layer."""

from __future__ import annotations

from tests.zoo.family import HIDDEN, LAYERS, VOCABULARY, Family, shape

_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}

DENSE = (
    Family("opt", "opt", shape("num_key_value_heads", ffn_dim=512, word_embed_proj_dim=HIDDEN)),
    Family("gpt2", "gpt2", _GPT2),
    Family("gptj", "gptj", {**_GPT2, "rotary_dim": 16, "tie_word_embeddings": False}),
    Family("gpt-neox", "gpt_neox", shape("num_key_value_heads", rotary_pct=0.25)),
    Family("gpt-bigcode", "gpt_bigcode", {**_GPT2, "multi_query": True}),
    Family(
        "bloom",
        "bloom",
        {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": 4},
    ),
    Family(
        "falcon-7b",
        "falcon",
        shape("num_key_value_heads", multi_query=True, parallel_attn=True, bias=False),
    ),
    Family(
        "falcon-40b",
        "falcon",
        shape(
            "num_key_value_heads",
            new_decoder_architecture=True,
            num_kv_heads=2,
            parallel_attn=True,
            bias=False,
        ),
    ),
    Family("stablelm", "stablelm", shape()),
    Family("llama", "llama", shape()),
    Family("llama-by-transformers", "llama", shape(), arguments={"model_impl": "transformers"}),
    Family("llama-8-bit-kv", "llama", shape(), arguments={"kv_cache_dtype": "fp8"}),
    Family("smollm", "llama", shape(tie_word_embeddings=True)),
    Family("internlm3", "llama", shape(), architecture="InternLM3ForCausalLM"),
    Family("mistral", "mistral", shape(sliding_window=None)),
    Family("ministral3", "ministral3", shape(head_dim=32)),
    Family("phi", "phi", shape(partial_rotary_factor=0.5)),
    Family("phi3", "phi3", shape(sliding_window=None)),
    Family("qwen2", "qwen2", shape(tie_word_embeddings=True)),
    Family("qwen3", "qwen3", shape(head_dim=32, tie_word_embeddings=True)),
    Family("olmo", "olmo", shape(clip_qkv=None)),
    Family("olmo2", "olmo2", shape()),
    Family("starcoder2", "starcoder2", shape(sliding_window=None)),
    Family("smollm3", "smollm3", shape()),
    Family("seed-oss", "seed_oss", shape(head_dim=32)),
    Family("gemma", "gemma", shape(head_dim=32, tie_word_embeddings=True)),
    Family("cohere", "cohere", shape(tie_word_embeddings=True, logit_scale=0.5)),
    Family("granite", "granite", shape()),
    Family("nemotron", "nemotron", shape(head_dim=32)),
    Family("glm", "glm", shape(head_dim=32)),
    Family("glm4", "glm4", shape(head_dim=32)),
    Family(
        "exaone4", "exaone4", shape(sliding_window=None, layer_types=["full_attention"] * LAYERS)
    ),
    Family("ernie4.5", "ernie4_5", shape(head_dim=32)),
    Family("hunyuan", "hunyuan_v1_dense", shape(head_dim=32)),
    Family("apertus", "apertus", shape()),
    Family("arcee", "arcee", shape(head_dim=32)),
    Family("jais2", "jais2", shape(head_dim=32)),
)
