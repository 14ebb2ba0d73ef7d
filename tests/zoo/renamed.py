"""Families that vLLM knows and transformers does not: Llama's tensors under other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.zoo.family import Family, Maker, shape

CODE = """from transformers import PretrainedConfig


class Config(PretrainedConfig):
    model_type = {model_type!r}
"""
_REMOTE = {"trust_remote_code": True}


def renaming(architecture: str, names: Mapping[str, str], **fields: Any) -> Maker:
    """Maker that renames Llama's tensors, part by part, and has a configuration of its own."""

    def maker(family: Family, path: Path) -> None:
        import dataclasses

        from tests.zoo.making import build, save

        model = build(dataclasses.replace(family, model_type="llama"))
        tensors = {}
        for name, tensor in model.state_dict().items():
            for old, new in names.items():
                name = name.replace(old, new)
            tensors[name] = tensor
        config = {
            **family.shape,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "torch_dtype": "bfloat16",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "model_type": family.model_type,
            "architectures": [architecture],
            "auto_map": {"AutoConfig": "configuration.Config"},
            **fields,
        }
        save(path, config, _join(tensors))
        (path / "configuration.py").write_text(CODE.format(model_type=family.model_type))

    return maker


def _join(tensors: dict[str, Any]) -> dict[str, Any]:
    """Join tensors whose names end in ``+n``: each is the n-th part of one matrix."""
    import torch

    whole: dict[str, list[Any]] = {}
    for name, tensor in sorted(tensors.items()):
        stem, _, _ = name.partition("+")
        whole.setdefault(stem, []).append(tensor)
    return {name: torch.cat(parts) for name, parts in whole.items()}


_EXAONE = {
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "gate_proj": "c_fc_0",
    "up_proj": "c_fc_1",
    "down_proj": "c_proj",
}
_INTERNLM2 = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj.weight": "attention.wqkv.weight+0",
    "self_attn.k_proj.weight": "attention.wqkv.weight+1",
    "self_attn.v_proj.weight": "attention.wqkv.weight+2",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}

RENAMED = (
    Family(
        "exaone",
        "exaone",
        shape(),
        maker=renaming(
            "ExaoneForCausalLM", _EXAONE, activation_function="silu", layer_norm_epsilon=1e-5
        ),
        arguments=_REMOTE,
    ),
    Family(
        "internlm2",
        "internlm2",
        shape(),
        maker=renaming("InternLM2ForCausalLM", _INTERNLM2, bias=False),
        arguments=_REMOTE,
    ),
    Family(
        "minicpm",
        "minicpm",
        shape(),
        maker=renaming(
            "MiniCPMForCausalLM",
            {},
            scale_emb=12,
            scale_depth=1.4,
            dim_model_base=64,
            num_experts=0,
        ),
        arguments=_REMOTE,
    ),
    Family(
        "baichuan",
        "baichuan",
        shape(),
        maker=renaming("BaichuanForCausalLM", {}, model_max_length=2048),
        arguments=_REMOTE,
    ),
    Family("mpt", "mpt", {"vocab_size": 512, "d_model": 128, "n_heads": 4, "n_layers": 8}),
)
