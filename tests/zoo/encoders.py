"""Models that embed or score a text instead of going on with it."""

from __future__ import annotations

from tests.zoo.family import Family, shape

_ENCODER = shape("num_key_value_heads", "tie_word_embeddings", max_position_embeddings=514)
_ROBERTA = {**_ENCODER, "type_vocab_size": 1, "position_embedding_type": "absolute"}
_POOLING = {"runner": "pooling", "skip_tokenizer_init": False, "max_model_len": 256}
"""A pooled text is one step's, and vLLM asks for a tokenizer."""
_BOTH_WAYS = {**_POOLING, "enable_prefix_caching": False}
"""Whose tokens look ahead, too: vLLM keeps nothing of them."""
_ONE = {"num_labels": 1}

ENCODERS = (
    Family("bert", "bert", _ENCODER, "AutoModel", "embed", arguments=_BOTH_WAYS),
    Family(
        "roberta",
        "roberta",
        _ROBERTA,
        "AutoModel",
        "embed",
        arguments=_BOTH_WAYS,
    ),
    Family(
        "xlm-roberta",
        "xlm-roberta",
        _ROBERTA,
        "AutoModel",
        "embed",
        arguments=_BOTH_WAYS,
    ),
    Family(
        "modernbert",
        "modernbert",
        shape("num_key_value_heads", local_attention=64),
        "AutoModel",
        "embed",
        arguments=_BOTH_WAYS,
    ),
    Family(
        "bert-reranker",
        "bert",
        {**_ENCODER, **_ONE},
        "AutoModelForSequenceClassification",
        "score",
        arguments=_BOTH_WAYS,
    ),
    Family(
        "xlm-roberta-reranker",
        "xlm-roberta",
        {**_ROBERTA, **_ONE},
        "AutoModelForSequenceClassification",
        "score",
        arguments=_BOTH_WAYS,
    ),
    Family(
        "qwen3-embedding",
        "qwen3",
        shape(head_dim=32, tie_word_embeddings=True),
        task="embed",
        arguments=_POOLING,
    ),
    Family("llama-embedding", "llama", shape(), "AutoModel", "embed", arguments=_POOLING),
    Family(
        "qwen3-reranker",
        "qwen3",
        shape(head_dim=32, **_ONE),
        "AutoModelForSequenceClassification",
        "score",
        arguments=_POOLING,
    ),
)
