"""Child process: a request loses its blocks in the same schedule() that gave it a part of the step.

python tier_priority.py MODELS

With priorities vLLM may preempt a request that it has just scheduled, and whose blocks have the
hashes of what it would have computed. Prints which texts were right, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny
from tiered import Tiered
from vllm import SamplingParams

CHUNK = tiny.BLOCK_TOKENS
BLOCKS = 10
URGENT_AT = 3
"""The step at which the urgent request comes: two later, it needs the last block."""


def texts(engine: Tiered, patient: list[int], urgent: list[int]) -> dict[str, list[int]]:
    """Texts of both requests by name; the urgent one comes while the patient one runs."""
    vllm, said = engine.llm.llm_engine, dict[str, list[int]]()

    def add(name: str, prompt: list[int], tokens: int, priority: int) -> None:
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        vllm.add_request(name, {"prompt_token_ids": prompt}, params, priority=priority)

    add("patient", patient, 8, 5)
    step = 0
    while vllm.has_unfinished_requests():
        if step == URGENT_AT:
            add("urgent", urgent, 6, 0)
        for out in vllm.step():
            if out.finished:
                said[out.request_id.split("-")[0]] = list(out.outputs[0].token_ids)
        step += 1
    return said


def main(models: str) -> None:
    arguments: dict[str, Any] = {
        "scheduling_policy": "priority",
        "async_scheduling": False,
        "max_model_len": (BLOCKS - 1) * tiny.BLOCK_TOKENS,
        "max_num_batched_tokens": 2 * CHUNK,
        "long_prefill_token_threshold": CHUNK,
        "long_prefill_token_threshold_adaptive": False,
    }
    engine = Tiered(Path(models), blocks=BLOCKS, arguments=arguments)
    (patient,), (urgent,) = engine.prompts(1, 280, 3), engine.prompts(1, CHUNK, 4)
    said = texts(engine, patient, urgent)
    facts = {
        "preemptions": engine.scheduler.counts.preemptions,
        "patient": said["patient"] == engine.circuit.generate(patient, 8),
        "urgent": said["urgent"] == engine.circuit.generate(urgent, 6),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
