"""Answers of an engine to prompts of embeddings (rows of zeros), with a cold and a warm cache.

Usage: mixed_prompts.py FOLDER. Prints the tokens with an empty cache, and those after a prompt that
has the same token ids and rows but counts those positions as tokens; and how many tokens were found
in the cache: [then, and at the second time].
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tiny

LENGTH, ROWS = 80, 3


def main(folder: Path) -> None:
    import torch
    from vllm import SamplingParams

    llm = tiny.make_llm(tiny.make_model("llama", folder), mirage={}, enable_prompt_embeds=True)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)

    def said(prompt: dict[str, Any]) -> Any:
        (answer,) = tiny.step_through(llm, [prompt], params)
        return answer

    width = llm.llm_engine.model_config.get_hidden_size()
    zeros = torch.zeros(LENGTH, width, dtype=torch.bfloat16)
    rows = torch.randn(ROWS, width, generator=torch.manual_seed(1)).to(torch.bfloat16)
    beside = zeros.clone()
    beside[-ROWS:] = rows
    real = [True] * (LENGTH - ROWS) + [False] * ROWS
    tokens = {"prompt_token_ids": [0] * LENGTH, "prompt_is_token_ids": real}
    cold = said({"prompt_embeds": zeros, "cache_salt": "alone"})
    said({"prompt_embeds": beside, **tokens})
    warm = said({"prompt_embeds": zeros})
    again = said({"prompt_embeds": zeros})
    print(list(cold.outputs[0].token_ids))
    print(list(warm.outputs[0].token_ids))
    print([warm.num_cached_tokens, again.num_cached_tokens])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
