"""Child process: log-probabilities that a family gives to tokens of prompts, as JSON.

python distance.py MODELS OUT FAMILY...   `plain` is with the kernels of our engines, and `packed`
as vLLM comes on this processor.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from tiny import make_llm, make_model, prompts


def said(path: Path, *, packed: bool) -> tuple[list[float], int]:
    """Log-probabilities of the prompts' tokens (without each first one), and the number of packed
    matrices.
    """
    from vllm import SamplingParams

    llm = make_llm(path, packed=packed, enable_prefix_caching=False)
    asked = [{"prompt_token_ids": each} for each in prompts(6, 40, seed=1)]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    found: list[float] = []
    for out in llm.generate(asked, params, use_tqdm=False):
        tokens: Any = zip(out.prompt_token_ids, out.prompt_logprobs, strict=True)
        found += [probable[token].logprob for token, probable in tokens if probable is not None]
    core = llm.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.get_model()
    away = sum(name.endswith("weight") and not p.numel() for name, p in model.named_parameters())
    llm.llm_engine.engine_core.shutdown()
    return found, away


if __name__ == "__main__":
    models, out, *families = sys.argv[1:]
    results: dict[str, dict[str, Any]] = {name: {} for name in families}
    # Packed first: the other switches oneDNN off for the process.
    for how in ("packed", "plain"):
        for name in families:
            path = make_model(name, Path(models))
            results[name][how], results[name][f"{how}_away"] = said(path, packed=how == "packed")
            gc.collect()
    Path(out).write_text(json.dumps(results))
