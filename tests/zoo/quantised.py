"""Llamas and others in the quantised formats of checkpoints, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zoo.family import Family, Maker, shape

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def packing(packer: str, config: dict[str, Any]) -> Maker:
    """Maker that stores the matrices of a family's decoder layers with `packed.packer`."""

    def maker(family: Family, path: Path) -> None:
        import torch

        from tests.zoo import packed
        from tests.zoo.making import build, config_of, save

        torch.manual_seed(family.seed)
        pack: packed.Packer = getattr(packed, packer)
        model = build(family)
        tensors: packed.Tensors = {}
        for name, tensor in model.state_dict().items():
            stem, end = name.rsplit(".", 1)
            if end == "weight" and stem.endswith(_PROJECTIONS):
                tensors |= {f"{stem}.{part}": t for part, t in pack(tensor).items()}
            else:
                tensors[name] = tensor
        save(path, config_of(model), tensors, quantization_config=config)

    return maker


def gpt_oss(family: Family, path: Path) -> None:
    """Make gpt-oss as it is published, with experts in MXFP4."""
    import torch

    from tests.zoo import packed
    from tests.zoo.making import build, config_of, save

    torch.manual_seed(family.seed)
    model = build(family)
    tensors: packed.Tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packs = packed.mxfp4(tensor.transpose(1, 2))
            tensors |= {f"{name}_{part}": t for part, t in packs.items()}
        else:
            tensors[name] = tensor
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    config = {"quant_method": "mxfp4", "modules_to_not_convert": [*plain, "lm_head"]}
    save(path, config_of(model), tensors, quantization_config=config)


def _compressed(
    form: str, weights: dict[str, Any], inputs: dict[str, Any] | None
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fp8-blocks": (
        "fp8_blocks",
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "w8a8": ("int8", _compressed("int-quantized", _INT8, _TOKENS)),
    "w4a16": ("packed4", _compressed("pack-quantized", _INT4, None)),
    "gptq": (
        "gptq",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    ),
    "awq": (
        "awq",
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    ),
}

SHAPES = {"fp8-blocks": {"num_key_value_heads": 4}}
"""Fields of a format's model: keys have 128 rows, since vLLM fuses scales in whole blocks only."""

QUANTISED = (
    *(
        Family(
            f"llama-{name}",
            "llama",
            shape(**SHAPES.get(name, {})),
            maker=packing(packer, config),
            quantisation=config["quant_method"],
        )
        for name, (packer, config) in FORMATS.items()
    ),
    Family(
        "gpt-oss-mxfp4",
        "gpt_oss",
        shape(
            head_dim=64,
            num_attention_heads=2,
            sliding_window=64,
            layer_types=["sliding_attention", "full_attention"] * 4,
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=128,
        ),
        maker=gpt_oss,
        quantisation="mxfp4",
    ),
)
