"""Child process: layers with full and sliding-window attention above a pool. Prints facts as JSON.

python tier_windows.py MODELS

Texts with everything computed are compared with texts with loaded blocks.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import tiny
from tiered import WORKER

from mirage.engine.tiers import present

TOKENS = 8


def make(folder: Path) -> Path:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=64,
        initializer_range=0.1,
        max_position_embeddings=2048,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        architectures=["Gemma3ForCausalLM"],
    )
    path = folder / "gemma"
    hf.AutoModelForCausalLM.from_config(config).float().save_pretrained(path)
    return path


def main(models: str) -> None:
    llm = tiny.make_llm(
        make(Path(models)),
        mirage={"policy": "pooled", "base_blocks": 64, "tier_socket": "the tests'"},
        dtype="float32",
        worker_cls=WORKER,
        blocks=256,
    )
    scheduler, tiers = tiny.scheduler_of(llm), present.tiers()
    assert tiers is not None
    pool: Any = tiers.pool
    rng = random.Random(1)
    batches = [
        [[rng.randrange(3, tiny.VOCABULARY) for _ in range(180 + 7 * i)] for i in range(2)]
        for _ in range(6)
    ]

    def said() -> list[Any]:
        return [tiny.run(llm, batch, TOKENS, logprobs=None) for batch in batches]

    pool.silent = True
    anew = said()
    pool.silent = False
    said()
    before = scheduler.counts.tokens
    again = said()
    scheduler.kv.blocks.check_integrity()
    asked = sum(len(prompt) + TOKENS - 1 for batch in batches for prompt in batch)
    print(
        json.dumps(
            {
                "groups": len(scheduler.groups.groups),
                "same": again == anew,
                "asked": asked,
                "again": scheduler.counts.tokens - before,
                "failed_loads": tiers.counts.failed_loads,
                "saved": tiers.counts.tokens_saved,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
