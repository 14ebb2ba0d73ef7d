"""Texts of seeded requests: ``split_prompts.py FOLDER OUT TOKENS_PER_STEP [plain]``.

Long and short prompts share the steps: requests with a seed of their own, without one, and greedy
ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tiny


def main(folder: Path, out: Path, tokens_per_step: int, plain: bool) -> None:
    from vllm import SamplingParams

    mirage: dict[str, object] | None = None if plain else {}
    llm = tiny.make_llm(
        tiny.make_model("llama", folder),
        mirage=mirage,
        dtype="float32",
        max_num_batched_tokens=tokens_per_step,
    )
    prompts = tiny.prompts(6, length=90, seed=3)
    kinds = [{"seed": 7}, {"seed": 8, "top_k": 40, "top_p": 0.9}, {}, {"temperature": 0.0}]
    parameters = [
        SamplingParams(
            **({"temperature": 1.0} | kinds[i % len(kinds)]),
            max_tokens=12,
            ignore_eos=True,
            detokenize=False,
        )
        for i in range(len(prompts))
    ]
    answers = llm.generate(
        [{"prompt_token_ids": tokens} for tokens in prompts], parameters, use_tqdm=False
    )
    reproducible = [i for i in range(len(prompts)) if i % len(kinds) != 2]
    out.write_text(json.dumps({i: list(answers[i].outputs[0].token_ids) for i in reproducible}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), "plain" in sys.argv[4:])
