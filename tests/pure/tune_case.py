"""A question to the tuner: two small models on a small GPU, and a trace of its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from model_folder import LLAMA, make_unweighed

SMALL = LLAMA | {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
"""A layer of 32 MiB, 32 KiB of KV a token."""


def write(folder: Path, **changes: Any) -> Path:
    """Write a configuration of two small models on a small GPU, and the models' folder, into
    `folder`. `changes` are keys of the file, whose path is returned.
    """
    folder.mkdir(exist_ok=True)
    make_unweighed(folder / "model", SMALL)
    each = {"model": "model", "share": 50, "max_model_len": 1024}
    content = {
        "device": {"kind": "cuda", "memory": "640MiB", "page": "2MiB"},
        "block_tokens": 16,
        "tenants": [{"name": "chat", **each}, {"name": "code", **each}],
        "replay": {"time_scale": 1.0},
    }
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(content | changes, sort_keys=False))
    return path


def write_trace(folder: Path, requests: int = 160) -> Path:
    """Write a trace of requests in bursts, in the format of Azure's traces. Return its path."""
    drawn = random.Random(7)
    lines, time = ["TIMESTAMP,ContextTokens,GeneratedTokens"], 0.0
    for number in range(requests):
        time += 0.001 if number % 20 else 0.05
        seconds = f"{time:010.7f}"
        lines.append(
            f"2024-01-15 09:00:{seconds},{drawn.randint(50, 700)},{drawn.randint(20, 200)}"
        )
    path = folder / "trace.csv"
    path.write_text("\r\n".join(lines))
    return path
