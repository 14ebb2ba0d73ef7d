"""Memory that the vision tower of a multimodal model would give, if it moved like a layer.

python benchmarks/towers.py

vLLM builds models of published shapes without memory. For each the program prints the size of the
tower, which no step of pure text computes, in decoder layers and in tokens of KV cache, and the
time to load it again, which would delay the first token of a request with a picture. It needs
torchvision, takes about a minute, and loads no weights.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.zoo.pictures import PROCESSORS

HARDWARE = Path(__file__).parent.parent / "configs" / "hardware"
MACHINES = {"GH200": "gh200.yaml", "H100, PCIe 5": "h100.yaml"}

CLIP_L = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}


def gemma3(hidden: int, wide: int, layers: int, heads: int, kv_heads: int, head: int) -> Any:
    """Shape of Gemma 3 in one of its sizes."""
    text = {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": 262208,
    }
    return "gemma3-mm", "gemma3", {"text_config": text, "vision_config": SIGLIP}


SHAPES = {
    "LLaVA 1.5 7B": (
        "llava",
        "llava",
        {
            "text_config": {
                "model_type": "llama",
                "vocab_size": 32064,
                "max_position_embeddings": 4096,
            },
            "vision_config": CLIP_L,
        },
    ),
    "Qwen2-VL 7B": (
        "qwen2-vl",
        "qwen2_vl",
        {
            "text_config": {
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "mrope_section": [16, 24, 24],
                },
            },
            "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584},
        },
    ),
    "Gemma 3 4B": gemma3(2560, 10240, 34, 8, 4, 256),
    "Gemma 3 27B": gemma3(5376, 21504, 62, 32, 16, 128),
}


def folder_of(name: str, path: Path) -> Path:
    """Write a model's configuration and processor without weights; returns the folder."""
    import transformers

    from tests.zoo.pictures import tokenizer

    family, kind, fields = SHAPES[name]
    config = transformers.AutoConfig.for_model(kind, **fields)
    config.architectures = {
        "llava": ["LlavaForConditionalGeneration"],
        "qwen2_vl": ["Qwen2VLForConditionalGeneration"],
        "gemma3": ["Gemma3ForConditionalGeneration"],
    }[kind]
    config.save_pretrained(path)
    PROCESSORS[family](tokenizer(family)).save_pretrained(path)
    return path


def weigh(name: str, answers: Any) -> None:
    """Child process: send the bytes of a model's parts through the pipe `answers`. Each model needs
    a process of its own, because vLLM sets up one distributed world per process.
    """
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs

    from mirage.engine import arguments, hollow, probe
    from mirage.engine.stack import find, parameter_bytes

    with tempfile.TemporaryDirectory() as folder:
        model = str(folder_of(name, Path(folder)))
        argv = ["--model", model, "--dtype", "bfloat16", "--enforce-eager"]
        args = arguments.parse([*argv, "--max-model-len", "4096"])
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        with set_current_vllm_config(config):
            hollow.alone()
            (built,) = hollow.built(config, lambda model: None, "meta")
            specs = probe._kv_specs(config)
    layers = find(built)
    whole, text = parameter_bytes(built), parameter_bytes(built.get_language_model())
    answers.send(
        {
            "whole": whole,
            "tower": whole - text,
            "layer": max(map(parameter_bytes, layers)),
            "layers": len(layers),
            "token": sum(spec.page_size_bytes / spec.block_size for spec in specs.values()),
        }
    )


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    profiles = [yaml.safe_load((HARDWARE / file).read_text()) for file in MACHINES.values()]
    rates = [1e9 * profile["link_gb_s"]["value"] for profile in profiles]
    back = " | ".join(f"back on {machine}" for machine in MACHINES)
    print(f"| model | weights | tower | in decoder layers | as KV cache | {back} |")
    print("|---|---:|---:|---:|---:|" + "---:|" * len(rates))
    for name in SHAPES:
        here, there = get_context("spawn").Pipe(duplex=False)
        child = get_context("spawn").Process(target=weigh, args=(name, there))
        child.start()
        there.close()
        print(row(name, here.recv(), rates), flush=True)
        child.join()


def row(name: str, found: dict[str, float], rates: Sequence[float]) -> str:
    """One line of the table; `rates` in bytes per second from host to device."""
    tower = found["tower"]
    times = " | ".join(f"{1000 * tower / rate:.1f} ms" for rate in rates)
    return (
        f"| {name} | {found['whole'] / 1e9:.1f} GB "
        f"| {tower / 1e9:.2f} GB ({tower / found['whole']:.1%}) "
        f"| {tower / found['layer']:.1f} of {found['layers']:.0f} "
        f"| {tower / found['token']:,.0f} tokens | {times} |"
    )


if __name__ == "__main__":
    main()
