"""Child process: drafted tokens of greedy requests and sampled ones in the same steps.

python drafting.py MODELS OUT

Writes the number of tokens of greedy requests, and how many of them are not the most likely one by
their own log-probabilities; and the tokens of all answers, as vLLM returns them and as the engine
counts them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tiny import make_llm, make_model, prompts, scheduler_of

TOKENS = 32
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


def unlikely(output: Any) -> int:
    """Number of tokens of a request that were not the most likely ones by their own
    log-probabilities.
    """
    return sum(
        logprobs[token].logprob < max(each.logprob for each in logprobs.values())
        for token, logprobs in zip(output.token_ids, output.logprobs, strict=True)
    )


if __name__ == "__main__":
    models, out = sys.argv[1:]
    from vllm import SamplingParams

    model = make_model("llama", Path(models))
    llm = make_llm(model, mirage={}, speculative_config=DRAFTS, dtype="float32")
    common: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}
    greedy = SamplingParams(temperature=0, logprobs=3, **common)
    sampled = SamplingParams(temperature=0.8, seed=3, logprobs=3, **common)
    # Prompts that repeat themselves, so that there is something to guess.
    asked = [{"prompt_token_ids": (p[:7] * 9)[: len(p)]} for p in prompts(8, 40, seed=2)]
    answers = llm.generate(asked, [greedy, sampled] * 4)  # type: ignore[arg-type]
    counts = scheduler_of(llm).counts
    facts = {
        "answers": [len(answer.outputs[0].token_ids) for answer in answers],
        "answered": counts.answered(0),
        "tokens a step": counts.tokens / counts.steps,
        "tokens": sum(len(a.outputs[0].token_ids) for a in answers[::2]),
        "unlikely": sum(unlikely(a.outputs[0]) for a in answers[::2]),
        "sampled": sum(unlikely(a.outputs[0]) for a in answers[1::2]),
    }
    Path(out).write_text(json.dumps(facts))
