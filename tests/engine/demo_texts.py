"""Child process: real vLLM's texts with each demo model, batched in three ways, as JSON.

Usage: demo_texts.py FOLDER TOKENS. Prints {family: {"prompts", "batch", "chunked", "alone"}}, lists
of token lists; "alone" has every second prompt, computed by itself.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path
from typing import Any

import tiny

from mirage.tools.demo.families import FAMILIES

LENGTHS = (1, 2, 9, 31, 32, 33, 64, 100, 180, 300, 600, 900)
CHUNK = 64


def texts() -> list[str]:
    rng = random.Random(3)
    return ["".join(chr(rng.randrange(32, 127)) for _ in range(n)) for n in LENGTHS]


def say(llm: Any, prompts: list[str], length: int) -> list[list[int]]:
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, greedy, use_tqdm=False)]


def run_family(folder: Path, length: int) -> dict[str, list[list[int]]]:
    from vllm import LLM

    llm = LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=16,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
    )
    prompts, tokenizer = texts(), llm.get_tokenizer()
    result = {
        "prompts": [tokenizer.encode(prompt) for prompt in prompts],
        "alone": [tokens for prompt in prompts[::2] for tokens in say(llm, [prompt], length)],
        "batch": say(llm, prompts, length),
    }
    tiny.scheduler_of(llm).max_num_scheduled_tokens = CHUNK
    return result | {"chunked": say(llm, prompts, length)}


def main(folder: Path, length: int) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    results = {}
    for family in FAMILIES:
        results[family] = run_family(folder / family, length)
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
