"""Prints how much of each call's prompt vLLM found in its prefix cache, as JSON.

Usage: shared_prefixes.py FOLDER {TRACE LENGTH_SCALE}…. The calls of each trace are sent one after
the other, with the demo's tokenizer. Printed for each trace is [[tokens of the prompt, of them from
the cache, the call's session, blocks that the engine reports as taken again, as cached and idle],
…].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny

from mirage.config import Config
from mirage.tools.demo.tokenizer import make_tokenizer
from mirage.workload.dealing import build
from mirage.workload.prompts import prompt_of
from mirage.workload.trace import select

CONTEXT, SEED = 512, 5


def main(folder: Path, traces: list[tuple[Path, float]]) -> None:
    llm = tiny.make_llm(tiny.make_model("llama", folder), mirage={}, max_model_len=CONTEXT)
    print(json.dumps([replayed(llm, trace, scale) for trace, scale in traces]))


def replayed(llm: Any, trace: Path, scale: float) -> list[tuple[Any, ...]]:
    from vllm import SamplingParams

    tenant = {"name": "t", "model": "m", "share": 90, "max_model_len": CONTEXT}
    config = Config.model_validate({"device": {"memory": "1GiB"}, "tenants": [tenant]})
    tokenizer, found = make_tokenizer(), []
    short = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, detokenize=False)
    for call in build(config, select(trace), 1.0, scale, SEED):
        tokens = list(tokenizer.encode(prompt_of(call, SEED)).ids)
        (answer,) = tiny.step_through(llm, [tokens], short)
        said = tiny.scheduler_of(llm).report()
        engine = said.blocks_again, said.kv_cached_blocks
        found.append((len(tokens), answer.num_cached_tokens, call.session, *engine))
    return found


if __name__ == "__main__":
    words = sys.argv[2:]
    pairs = zip(words[::2], words[1::2], strict=True)
    main(Path(sys.argv[1]), [(Path(trace), float(scale)) for trace, scale in pairs])
